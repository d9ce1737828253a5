package bench

import (
	"context"
	"errors"
	"fmt"

	"fisub/bench/worker"
	"fisub/internal/trace"
)

// Compile calls sol, which is in Triton, once on w, on the virtual GPU without executing its kernels, and gives the
// names of those that it launched, which Triton compiled for a B200, and what compiled them. What Triton refuses is a
// *worker.Error of kind Build, which begins with its place. All other errors say why this was not looked at.
func Compile(ctx context.Context, s *Shared, sol *trace.Solution, w *trace.Workload) (kernels []string, tools string,
	err error) {
	p, err := newProcess(ctx, s, s.Definition, sol)
	if err != nil {
		return nil, "", err
	}
	defer p.stop()
	e, err := evaluatorOf(s.Definition)
	if err != nil {
		return nil, "", err
	}
	in, err := openInputs(ctx, s, e, w, 0)
	if err != nil {
		return nil, "", err
	}
	defer in.Close()
	if err := p.ready(ctx, ctx); err != nil {
		var we *worker.Error
		if errors.As(err, &we) && we.Kind == worker.Build { // it does not even import here
			err = &worker.Error{Kind: worker.Lacking, Text: we.Text, Log: we.Log}
		}
		return nil, "", err
	}
	if err := p.load(ctx, in.load); err != nil {
		return nil, "", err
	}
	kernels, err = p.client.Compile(ctx)
	return kernels, fmt.Sprintf("Triton %s", p.info.Libs["triton"]), err
}

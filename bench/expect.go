package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A referenceError means that the expected outputs of one workload are unavailable: no verdict on the solution.
type referenceError struct {
	definition string
	err        error
}

func (e *referenceError) Error() string { return "reference of " + e.definition + ": " + e.err.Error() }
func (e *referenceError) Unwrap() error { return e.err }

// referenceTimeout limits one call of a Python reference, which may loop over tokens.
const referenceTimeout = 30 * time.Minute

// A pyReference runs a definition's own reference in a separate worker process, so that the solution's process never
// holds expected outputs.
type pyReference struct{ *process }

// run returns the outputs of the reference for the inputs of load. Its error is a *referenceError, or ctx's.
func (p *pyReference) run(ctx context.Context, load *worker.Tensors, size int64) ([]*tensor.Tensor, error) {
	var want []*tensor.Tensor
	err := p.open(ctx)
	if err == nil {
		limit, cancel := context.WithTimeout(ctx, referenceTimeout)
		defer cancel()
		want, err = p.call(limit, load, size)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil {
		return want, nil
	}
	text := withLog(err, strings.TrimSpace(p.log())).Error()
	p.end() // after any error, such as a lack of memory, the next workload gets a new process
	return nil, &referenceError{p.def.Name, errors.New(text)}
}

func (p *pyReference) call(ctx context.Context, load *worker.Tensors, size int64) ([]*tensor.Tensor, error) {
	if err := p.out.room(size); err != nil {
		return nil, err
	}
	if err := p.load(ctx, load); err != nil {
		return nil, err
	}
	written, err := p.client.Run(ctx, p.out.f)
	if err != nil {
		return nil, err
	}
	p.client.TakeLog()
	outs, unmap, err := p.out.read(written)
	if err != nil {
		return nil, err
	}
	defer unmap()
	var want []*tensor.Tensor
	for i, o := range outs {
		if o.tensor == nil {
			return nil, fmt.Errorf("output %s: the format has no dtype %s", p.def.Outputs.Keys()[i], o.dtype)
		}
		t := *o.tensor
		t.Data = slices.Clone(t.Data) // the next call overwrites it
		want = append(want, &t)
	}
	return want, nil
}

// open makes the process ready, on the CPU if torch cannot use the GPU. The worker lives until ctx ends.
func (p *pyReference) open(ctx context.Context) error {
	if p.buildErr == nil && !p.running() {
		err := p.start(ctx, ctx)
		if worker.KindOf(err) == worker.Machine && p.kind != "emu" {
			p.kind, p.opts.Ordinal = "emu", 0
			err = p.start(ctx, ctx)
		}
		if err != nil {
			return err
		}
	}
	return p.ready(ctx, ctx)
}

// ReferenceSolution returns the reference of def as a solution, with the names used by the official harness.
func ReferenceSolution(def *trace.Definition) *trace.Solution {
	return &trace.Solution{Name: def.Name + "__reference", Definition: def.Name, Author: "__builtin__",
		Spec:    trace.BuildSpec{Language: trace.Python, TargetHardware: []string{"cuda"}, EntryPoint: "main.py::run"},
		Sources: []trace.SourceFile{{Path: "main.py", Content: def.Reference}}}
}

// isReference reports whether sol is just the reference of def.
func isReference(sol *trace.Solution, def *trace.Definition) bool {
	return len(sol.Sources) == 1 && sol.Sources[0].Content == def.Reference && sol.Spec.Language == trace.Python
}

// returning returns def as its reference implements it: all outputs are returned and no input changes.
func returning(def *trace.Definition) *trace.Definition {
	own := *def
	own.Outputs = trace.Map[trace.TensorSpec]{}
	for name, out := range def.Outputs.All() {
		out.Param = ""
		own.Outputs.Set(name, out)
	}
	return &own
}

// A noReferenceError is ErrNoReference with its reason.
type noReferenceError struct {
	definition string
	err        error
}

func (e *noReferenceError) Error() string {
	return fmt.Sprintf("%s: %v: %v", e.definition, ErrNoReference, e.err)
}
func (e *noReferenceError) Unwrap() error        { return e.err }
func (e *noReferenceError) Is(target error) bool { return target == ErrNoReference }

// newReference returns the Python reference of the definition. If no Python can run it, the error is ErrNoReference
// with the reason.
func newReference(ctx context.Context, s *Shared, stamper *stamper) (*pyReference, error) {
	def := returning(s.Definition)
	p, err := newProcess(ctx, s, def, ReferenceSolution(def))
	if err != nil {
		return nil, &noReferenceError{s.Definition.Name, err}
	}
	p.opts = device.Options{Ordinal: s.Device.Ordinal,
		CacheDir: filepath.Join(s.Device.CacheDir, "reference")} // submissions cannot write there
	p.stamper = stamper
	return &pyReference{p}, nil
}

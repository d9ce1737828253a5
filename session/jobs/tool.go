package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"fisub/internal/usage"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
)

// Tool takes the only job of an order to its end, hands on the lines that the program writes on the host, and brings
// the job's log into folder, that of the run. Nothing of the job stays on the host, also where ctx ends first. failed
// tells that the program has ended with another status than 0; the log then says why, and err does where it was not the
// solution.
func Tool(
	ctx context.Context, o *Order, folder string, open providers.Set,
	bundle func(context.Context, []string) ([]remote.File, []string, error), state func(remote.State),
	sent func(sent, total int64), line func([]byte) error,
) (failed bool, err error) {
	plan := o.Plan
	place := plan.Places[0]
	provider := open[place.Table]
	files, args, err := bundle(ctx, []string{plan.Run.Workloads[0].UUID})
	if err != nil {
		return false, err
	}
	job := &remote.Job{ID: "fisub-" + plan.Run.ID + "-1", Files: files, Args: args, GPU: plan.GPU, Limit: plan.Limit,
		Place: place.Place, Busy: plan.Busy, Env: map[string]string{"FIB_DATASET_PATH": ""},
		Key: rand.Text(), Labels: map[string]string{"run": plan.Run.ID, "definition": plan.Run.Definition}}
	h, err := provider.Submit(ctx, job, sent)
	if err != nil {
		return false, err
	}
	h.Key = job.Key
	w := &lineWatcher{state: state, line: line, cut: remote.Cutter{Seal: remote.Seal{Key: job.Key, Job: job.ID}}}
	exit, err := provider.Wait(ctx, h, 0, w)
	if missing := w.cut.Missing(exit); err == nil && missing != "" {
		err = forged("%s", missing)
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	collected := provider.Collect(clean, h, folder)
	if released := provider.Release(clean, h); released != nil {
		err = errors.Join(err, fmt.Errorf("job %s may still run, to its limit of %v: %w", job.ID, plan.Limit, released))
	}
	switch {
	case err != nil:
		return false, err
	case exit.End == remote.Exited && exit.Code == 0:
		return false, nil
	case exit.End == remote.Exited && exit.Code == 3:
		return true, nil
	case collected != nil && !errors.Is(collected, fs.ErrNotExist):
		return true, collected
	}
	log, _ := os.ReadFile(filepath.Join(folder, agent.LogName))
	text, hint := dispatch.LastWords(log)
	if exit.End != remote.Exited || text == "" {
		text, hint = agent.Describe(exit), exit.Hint
	}
	return true, usage.Errorf(cmp.Or(hint, "the log is "+filepath.Join(folder, agent.LogName)), "%s: %s", place, text)
}

// forged says why what a tool has told cannot be all that it told.
func forged(format string, args ...any) error {
	return usage.Errorf("something has written to it that was not the tool: fisub help trust",
		"what it said is not to be believed: "+format, args...)
}

// A lineWatcher takes a job's stream line by line.
type lineWatcher struct {
	state func(remote.State)
	line  func([]byte) error
	cut   remote.Cutter
	size  int
}

func (w *lineWatcher) State(s remote.State) { w.state(s) }

func (w *lineWatcher) Write(p []byte) (int, error) {
	w.size += len(p)
	for l := range w.cut.Cut(p) {
		if !l.Signed {
			return 0, forged("line %d of its stream is not signed by its agent", w.cut.Lines+1)
		}
		if l.Long || w.size > dispatch.UsualStream {
			return 0, errors.New("the tool has said more than fisub takes")
		}
		if err := w.line(l.Text); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

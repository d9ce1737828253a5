package app

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/project/machine"
	"fisub/project/setup"
	"fisub/runs"
	"fisub/workloads"
)

type localOptions struct {
	setup.Options
	solution      string
	resume        string // run to resume, as runs.Find takes it
	dump          string // folder for the tensors of the first workload that fails
	failFast      bool
	keepGoing     bool
	secret        string        // of the run whose honesty checks to repeat; ""
	budget        time.Duration // how long after the first workload others may still start; 0: no limit
	strict, watch bool
}

func (a *app) localCommand() *cli.Command {
	var o localOptions
	prebuilt := stringFlag(&o.Prebuilt, "prebuilt", "take compiled kernels from `DIR`", "")
	prebuilt.Hidden = true
	failFast := boolFlag(&o.failFast, "fail-fast", "stop at the first workload that does not pass")
	failFast.Aliases = []string{"x"}
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Flags: append(runFlags(&o.Options), solutionFlag(&o.solution), baselineFlag(&o.Baseline), prebuilt,
			strictFlag(&o.strict), failFast,
			stringFlag(&o.dump, "dump", "save the tensors of the first failed workload to `DIR` as safetensors", ""),
			timeFlag(&o.budget, "budget", "start no new workload after `TIME`; small and large workloads alternate", "none"),
			boolFlag(&o.watch, "watch", "run again whenever the config or a source is saved, until Ctrl-C"),
			boolFlag(&o.keepGoing, "keep-going", "do not stop after two consecutive TIMEOUTs or a failed build"),
			boolFlag(&o.Sanitize, "sanitize", "virtual GPU: apply the checks of fisub sanitize to each workload"),
			stringFlag(&o.secret, "secret", "repeat the honesty checks of a run, with the `SECRET` in its run.json", ""),
			stringFlag(&o.resume, "resume", "continue `RUN`: run its workloads without a verdict, with its settings", "")),
		Action: func(c *cli.Context) error {
			if o.watch {
				return a.watch(c.Context, o)
			}
			return a.local(c.Context, o, a.events())
		},
	}
}

func (a *app) local(ctx context.Context, o localOptions, show event.Sink) error {
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	total, err := a.runLocal(ctx, s, o, show)
	if err != nil {
		return err
	}
	return verdict(total.Missing, total.Failed, total.Findings, o.strict)
}

// runLocal runs s on this machine and stores the run below its root. show also receives the events.
func (a *app) runLocal(ctx context.Context, s *project.Submission, o localOptions, show event.Sink) (
	total event.Done, err error) {
	folder, old, err := openResumed(s.Root, o.resume)
	if err != nil {
		return total, err
	}
	if folder != nil {
		defer folder.Close()
	}
	if o.secret != "" && o.strict {
		return total, usage.Errorf("omit one of them", "--secret and --strict: a submission may know the secret, so a run "+
			"without findings proves nothing")
	}
	if o.dump != "" {
		o.dump = a.Path(o.dump)
		if err := os.MkdirAll(o.dump, 0o755); err != nil {
			return total, err
		}
	}
	u, err := setup.NewLocal(ctx, &a.Project, s, o.Options, old, a.term)
	if err != nil {
		return total, err
	}
	if o.budget > 0 {
		u.Workloads = workloads.Evenly(u.Workloads)
	}
	run := u.Describe(ctx, s)
	run.BudgetS, run.KnownSecret = o.budget.Seconds(), o.secret != ""

	var before *runs.Summary
	var admit func(event.Device) error
	if old == nil {
		folder = runs.New(s.Root, run.ID)
		defer folder.Close()
	} else {
		if err = old.Continue(run); err != nil {
			return total, err
		}
		before = &old.Summary
		admit = old.SameDevice
		total = before.Totals()
		a.term.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, total.Passed+total.Failed, len(run.Workloads))
		if total.Failed > 0 {
			a.term.Note("           %d of them did not pass; fisub report %s shows them", total.Failed, run.ID)
		}
		total.Missing -= total.Left
		if !slices.ContainsFunc(u.Workloads, func(w *trace.Workload) bool { return !before.Judged(w.UUID) }) {
			return total, folder.End(old)
		}
	}
	wrong := "" // the first workload that was called and did not pass
	stream := event.NewStream(folder.Record, show, func(e event.Event) error {
		if v := e.Evaluated; v != nil && wrong == "" && !v.Passed() && v.Status() != trace.CompileError {
			wrong = e.Workload
		}
		return nil
	})
	shared := u.Shared(s)
	shared.FailFast, shared.EndEarly, shared.Budget, shared.Secret = o.failFast, !o.keepGoing, o.budget, o.secret
	result, err := bench.Run(ctx, shared, bench.Entry{Solution: s.Solution, Events: stream, Run: run,
		Admit: admit, Before: before, Dump: o.dump})
	total = event.Done{Failed: result.Failed, Findings: result.Findings, Missing: result.Missing - result.Left}
	if result.Stopped && result.Failed > 0 {
		total.Missing = 0 // the failed workloads decide the exit status
	}
	if ctx.Err() != nil || result.Stopped && !result.Unbuilt {
		a.term.Note("continue with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return total, machine.Invalid(err)
	}
	if err := stream.Err(); err != nil {
		return total, err
	}
	a.term.Note("run folder %s", plain.Relative(folder.Path()))
	if d := result.Dumped; d != nil {
		what := "inputs, expected and actual outputs"
		if !d.Actual {
			what = "inputs and expected outputs; the call returned none"
		}
		a.term.Note("dumped     %s, %.1f MB: %s", plain.Relative(d.Path), float64(d.Bytes)/1e6, what)
	} else if wrong != "" {
		a.term.Note("tensors    fisub local --workload %s --dump DIR saves the inputs, outputs and expected outputs of %s",
			plain.Short(wrong), plain.Short(wrong))
	}
	if text := narrow(s, run); text != "" {
		a.term.Note("%s", text)
	}
	return total, nil
}

// openResumed opens the folder of the run to resume, below root; folder and old are nil if resume is "".
func openResumed(root, resume string) (folder *runs.Folder, old *runs.Run, err error) {
	if resume == "" {
		return nil, nil, nil
	}
	id, err := runs.Find(root, resume)
	if err != nil {
		return nil, nil, usage.Invalid(err)
	}
	if run, err := runs.Header(filepath.Join(root, runs.Dir, id)); err == nil && run.Remote {
		return nil, nil, usage.Errorf("fisub remote attach "+id, "--resume %s: remote run", id)
	}
	folder, old, err = runs.Resume(root, id)
	return folder, old, usage.Invalid(err)
}

// narrow describes the part of the contest's mix that the default set leaves out, or returns "" for another set.
func narrow(s *project.Submission, run *event.Run) string {
	mix, err := s.Data.Workloads(s.Definition.Name, workloads.ContestSet)
	if err != nil || run.Set != workloads.DefaultSet {
		return ""
	}
	var fixed []string
	ranges := axisRanges(mix)
	for _, axis := range slices.Sorted(maps.Keys(run.Workloads[0].Axes)) {
		same := true
		for _, w := range run.Workloads {
			same = same && w.Axes[axis] == run.Workloads[0].Axes[axis]
		}
		if same && ranges[axis].Max > ranges[axis].Min {
			fixed = append(fixed, fmt.Sprintf("%s %d only; the contest has %v", axis, run.Workloads[0].Axes[axis], ranges[axis]))
		}
	}
	text := "set default is small"
	if len(fixed) > 0 {
		text = "set default has " + strings.Join(fixed, "; ")
	}
	return fmt.Sprintf("%s; fisub local --set %s runs all %d", text, workloads.ContestSet, len(mix))
}

// watch runs local again whenever a file of the submission changes. After the first complete run, it shows only what
// changes.
func (a *app) watch(ctx context.Context, o localOptions) error {
	if o.resume != "" {
		return usage.Errorf("omit one of them", "--watch cannot be combined with --resume")
	}
	s, err := a.Load(o.solution) // each run shows the warnings
	if err != nil {
		return err
	}
	roots := []string{a.Path(o.solution)}
	if s.Config != nil {
		roots = []string{a.ConfigPath(), s.Config.SourceDir()}
	}
	var last *ui.Turn
	onChange(ctx, roots, func(run context.Context) {
		show, turn := a.events(), (*ui.Turn)(nil)
		if a.final == nil && !a.json {
			show, turn = a.term.Turn(last)
			show = a.also(show)
		}
		err := a.local(run, o, show)
		if run.Err() != nil {
			if ctx.Err() == nil {
				a.term.Note("changed    the run was stopped and starts again")
			}
			return
		}
		a.exit(err)
		a.term.Note("watching   %s; Ctrl-C ends", plain.Relative(roots[len(roots)-1]))
		if turn != nil && turn.Ended {
			last, a.term.Quiet = turn, true
		}
	})
	return ctx.Err()
}

// onChange calls run, and calls it again after a file in roots has changed and all files have been stable for one
// tick. A change cancels the context of the current run. onChange returns when ctx ends.
func onChange(ctx context.Context, roots []string, run func(context.Context)) {
	for ctx.Err() == nil {
		before := fileTimes(roots)
		rctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			run(rctx)
		}()
		tick := time.NewTicker(200 * time.Millisecond)
		for last := before; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			now := fileTimes(roots)
			if ctx.Err() != nil || now != before && now == last {
				break
			}
			last = now
		}
		tick.Stop()
		cancel()
		<-ended
	}
}

// fileTimes lists all files with their sizes and modification times. It skips folders whose names begin with a dot.
func fileTimes(roots []string) string {
	var all strings.Builder
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // deleted in the meantime
			case d.IsDir() && name != root && strings.HasPrefix(d.Name(), "."):
				return filepath.SkipDir
			case d.IsDir():
				return nil
			}
			if st, err := d.Info(); err == nil {
				fmt.Fprintln(&all, name, st.Size(), st.ModTime().UnixNano())
			}
			return nil
		})
	}
	return all.String()
}

// verdict returns the exit status of a run from its numbers of missing verdicts, failed workloads and findings. The
// table has already been printed.
func verdict(missing, failed, findings int, strict bool) error {
	switch {
	case missing > 0:
		return shown(exitError)
	case failed > 0, strict && findings > 0:
		return shown(exitNotPassed)
	}
	return nil
}

func (a *app) workerCommand() *cli.Command {
	return &cli.Command{Name: "worker", Hidden: true, Action: func(c *cli.Context) error {
		return machine.Work(c.Context, openers)
	}}
}

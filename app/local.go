package app

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
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
	failFast := boolFlag(&o.failFast, "fail-fast", "stop at the first workload that does not pass")
	failFast.Aliases = []string{"x"}
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Flags: append(runFlags(&o.Options), solutionFlag(&o.solution), baselineFlag(&o.Baseline),
			prebuiltFlag(&o.Prebuilt), strictFlag(&o.strict), failFast,
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
	return verdict(total, o.strict)
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
	if err := o.prepare(&a.Project); err != nil {
		return total, err
	}
	settings, err := setup.NewLocal(ctx, &a.Project, s, o.Options, old, a.term)
	if err != nil {
		return total, err
	}
	if o.budget > 0 {
		settings.Workloads = workloads.Evenly(settings.Workloads)
	}
	run := settings.Describe(ctx, s)
	run.BudgetS, run.KnownSecret = o.budget.Seconds(), o.secret != ""
	entry := bench.Entry{Solution: s.Solution, Run: run, Dump: o.dump}
	if old == nil {
		folder = runs.NewFolder(s.Root, run.ID)
		defer folder.Close()
	} else {
		if err := old.Continue(run); err != nil {
			return total, err
		}
		total = a.resumed(old, len(run.Workloads))
		if !slices.ContainsFunc(settings.Workloads, func(w *trace.Workload) bool { return !old.Judged(w.UUID) }) {
			return total, folder.End(old)
		}
		entry.Admit, entry.Before = old.SameDevice, &old.Summary
	}
	failed := "" // the first workload that was called and did not pass
	entry.Events = event.NewStream(folder.Record, show, func(e event.Event) error {
		if v := e.Evaluated; v != nil && failed == "" && !v.Passed() && v.Status() != trace.CompileError {
			failed = e.Workload
		}
		return nil
	})
	shared := settings.Shared(s)
	shared.FailFast, shared.EndEarly, shared.Budget, shared.Secret = o.failFast, !o.keepGoing, o.budget, o.secret
	result, err := bench.Run(ctx, shared, entry)
	total = event.Done{Failed: result.Failed, Findings: result.Findings, Missing: result.Missing - result.Left}
	if result.Stopped && result.Failed > 0 {
		total.Missing = 0 // the failed workloads decide the exit status
	}
	err = cmp.Or(machine.Invalid(err), entry.Events.Err())
	if ctx.Err() != nil || result.Stopped && !result.Unbuilt {
		a.term.Note("continue with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return total, err
	}
	a.term.Note("run folder %s", plain.Relative(folder.Path()))
	a.noteTensors(result.Dumped, failed)
	if settings.Omitted != "" && result.Failed == 0 {
		a.term.Note("%s", settings.Omitted)
	}
	return total, nil
}

// noteTensors prints where the tensors of a failed workload are, or how to save them.
func (a *app) noteTensors(d *bench.Dumped, failed string) {
	if d != nil {
		what := "inputs, expected and actual outputs"
		if d.Inputs {
			what = "inputs"
		} else if !d.Actual {
			what = "inputs and expected outputs; the call returned none"
		}
		a.term.Note("dumped     %s, %.1f MB: %s", plain.Relative(d.Path), float64(d.Bytes)/1e6, what)
	} else if failed != "" {
		a.term.Note("tensors    fisub local --workload %s --dump DIR saves the inputs, outputs and expected outputs of %s",
			plain.Short(failed), plain.Short(failed))
	}
}

// prepare checks the options that are not part of the setup, and creates the folder for tensors.
func (o *localOptions) prepare(p *project.Project) error {
	if o.secret != "" && o.strict {
		return usage.Errorf("omit one of them", "--secret and --strict: a submission may know the secret, so a run "+
			"without findings proves nothing")
	}
	if o.dump == "" {
		return nil
	}
	o.dump = p.Path(o.dump)
	return os.MkdirAll(o.dump, 0o755)
}

// resumed prints how much of n workloads of a run is done, and returns its totals without the workloads left out by
// --budget.
func (a *app) resumed(old *runs.Run, n int) event.Done {
	total := old.Totals()
	a.term.Note("resumed    %s: %d of %d workloads have a verdict", old.ID, total.Passed+total.Failed, n)
	if total.Failed > 0 {
		a.term.Note("           %d of them did not pass; fisub report %s shows them", total.Failed, old.ID)
	}
	total.Missing -= total.Left
	return total
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

// verdict returns the exit status of a run from its totals. The table has already been printed.
func verdict(total event.Done, strict bool) error {
	switch {
	case total.Missing > 0:
		return shown(exitError)
	case total.Failed > 0, strict && total.Findings > 0:
		return shown(exitNotPassed)
	}
	return nil
}

func (a *app) workerCommand() *cli.Command {
	return &cli.Command{Name: "worker", Hidden: true, Action: func(c *cli.Context) error {
		return machine.Work(c.Context, openers)
	}}
}

package app

import (
	"context"

	"github.com/urfave/cli/v2"

	"fisub/bench/machine"
	"fisub/internal/plain"
	"fisub/internal/usage"
	"fisub/session"
)

type localOptions struct {
	session.Local
	solution      string
	strict, watch bool
}

func (a *app) localCommand() *cli.Command {
	var o localOptions
	prebuilt := stringFlag(&o.Prebuilt, "prebuilt", "take compiled kernels from `DIR`", "")
	prebuilt.Hidden = true
	failFast := boolFlag(&o.FailFast, "fail-fast", "end with the first workload that does not pass")
	failFast.Aliases = []string{"x"}
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Flags: append(runFlags(&o.Options), solutionFlag(&o.solution), baselineFlag(&o.Baseline), prebuilt,
			strictFlag(&o.strict), failFast,
			stringFlag(&o.Dump, "dump", "write inputs, expected and actual outputs of the first workload that does not pass "+
				"to `DIR`, as safetensors", ""),
			timeFlag(&o.Budget, "budget", "begin no workload, but the first, after `TIME`; they run in an order in which "+
				"each beginning is spread over the axes", "none"),
			boolFlag(&o.watch, "watch", "run again whenever the config or a source is saved, until Ctrl-C"),
			boolFlag(&o.KeepGoing, "keep-going", "go on after two TIMEOUTs in a row, and where it does not build"),
			boolFlag(&o.Sanitize, "sanitize", "emulator: look at each workload as fisub sanitize does at one"),
			stringFlag(&o.Resume, "resume", "go on with `RUN`, an id, its beginning, last or last~1: set, workloads, "+
				"profile, timer, "+
				"baseline and device are its own unless given, and workloads with a verdict are left out", "")),
		Action: func(c *cli.Context) error {
			if o.watch {
				return a.watch(c.Context, o)
			}
			return a.local(c.Context, o)
		},
	}
}

func (a *app) local(ctx context.Context, o localOptions) error {
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	total, err := a.RunLocal(ctx, s, o.Local, a.events(), a.term)
	if err != nil {
		return err
	}
	return verdict(total.Missing, total.Failed, total.Findings, o.strict)
}

// watch is local, again and again.
func (a *app) watch(ctx context.Context, o localOptions) error {
	if o.Resume != "" {
		return usage.Errorf("leave one out", "--watch: with --resume there is one run")
	}
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	roots := []string{a.Path(o.solution)}
	if s.Config != nil {
		roots = []string{a.ConfigPath(), s.Config.SourceDir()}
	}
	session.Watch(ctx, roots, func(run context.Context) {
		if err := a.local(run, o); run.Err() == nil {
			a.exit(err)
			a.term.Note("watching   %s; Ctrl-C ends", plain.Relative(roots[len(roots)-1]))
		} else if ctx.Err() == nil {
			a.term.Note("changed    the run has ended; it begins again")
		}
	})
	return ctx.Err()
}

// verdict is the exit status of a run, of which the table has said everything: by its workloads without a verdict,
// those that did not pass, and its findings.
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

package app

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/device"
	"fisub/internal/confine"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/session"
)

type localOptions struct {
	session.Options
	solution, resume, dump      string
	strict, failFast, keepGoing bool
}

func (a *app) localCommand() *cli.Command {
	var o localOptions
	prebuilt := stringFlag(&o.Prebuilt, "prebuilt", "take compiled kernels from `DIR`", "")
	prebuilt.Hidden = true
	failFast := boolFlag(&o.failFast, "fail-fast", "end with the first workload that does not pass")
	failFast.Aliases = []string{"x"}
	return &cli.Command{
		Name:  "local",
		Usage: "run the submission's workloads on this machine",
		Flags: append(runFlags(&o.Options), solutionFlag(&o.solution), baselineFlag(&o.Baseline), prebuilt,
			strictFlag(&o.strict), failFast,
			stringFlag(&o.dump, "dump", "write inputs, expected and actual outputs of the first workload that does not pass "+
				"to `DIR`, as safetensors", ""),
			boolFlag(&o.keepGoing, "keep-going", "go on after two TIMEOUTs in a row, and where it does not build"),
			boolFlag(&o.Sanitize, "sanitize", "emulator: look at each workload as fisub sanitize does at one"),
			stringFlag(&o.resume, "resume", "go on with `RUN`, an id, its beginning, last or last~1: set, workloads, "+
				"profile, timer, "+
				"baseline and device are its own unless given, and workloads with a verdict are left out", "")),
		Action: func(c *cli.Context) error { return a.local(c.Context, o) },
	}
}

func (a *app) local(ctx context.Context, o localOptions) error {
	s, err := a.load(o.solution)
	if err != nil {
		return err
	}
	folder, old, err := session.OpenResumed(s.Root, o.resume)
	if err != nil {
		return err
	}
	if folder != nil {
		defer folder.Close()
	}
	if o.Prebuilt != "" {
		if o.Prebuilt, err = filepath.Abs(a.Path(o.Prebuilt)); err != nil {
			return err
		}
	}
	if o.dump != "" {
		o.dump = a.Path(o.dump)
		if err := os.MkdirAll(o.dump, 0o755); err != nil {
			return err
		}
	}
	u, err := session.NewLocal(ctx, s, o.Options, old, a.term)
	if err != nil {
		return err
	}
	u.Version = Version
	if u.Baseline, err = a.FindBaseline(s, o.Baseline, old, u.Kind, a.term); err != nil {
		return err
	}
	run := u.Describe(ctx, s)

	before := &session.Before{}
	var admit func(device.Info) error
	if old == nil {
		folder = runs.New(s.Root, run.ID)
		defer folder.Close()
	} else {
		if before, err = session.GoOn(old, run); err != nil {
			return err
		}
		admit = func(d device.Info) error { return session.SameDevice(old, d) }
		a.term.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, len(before.Skip), len(u.Workloads))
		if before.Failed > 0 {
			a.term.Note("           %d of them did not pass: fisub report %s lists them", before.Failed, run.ID)
		}
		if len(before.Skip) == len(u.Workloads) {
			if err := session.End(folder, old); err != nil {
				return err
			}
			return verdict(0, before.Failed, before.Findings, o.strict)
		}
	}
	wrong := "" // the first workload that was called and did not pass
	stream := event.NewStream(folder.Record, a.events(), func(e event.Event) error {
		if v := e.Evaluated; v != nil && wrong == "" && v.Status != string(trace.Passed) &&
			v.Status != string(trace.CompileError) {
			wrong = e.Workload
		}
		return nil
	})
	shared := u.Shared(s)
	shared.FailFast, shared.EndEarly = o.failFast, !o.keepGoing
	result, err := bench.Run(ctx, shared, bench.Entry{Solution: s.Solution, Events: stream, Run: run,
		Admit: admit, Skip: before.Skip, TimedWith: before.Timer, Score: before.Score,
		Dump: o.dump})
	if result.Stopped && result.Failed > 0 {
		result.Missing = 0 // those that failed tell enough
	}
	if ctx.Err() != nil || result.Stopped && !result.Unbuilt {
		a.term.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return session.Machine(err)
	}
	if err := stream.Err(); err != nil {
		return err
	}
	a.term.Note("run folder %s", session.Relative(folder.Path()))
	if d := result.Dumped; d != nil {
		what := "inputs, expected and actual outputs"
		if !d.Actual {
			what = "inputs and expected outputs; the call gave none"
		}
		a.term.Note("dumped     %s, %.1f MB: %s", session.Relative(d.Path), float64(d.Bytes)/1e6, what)
	} else if wrong != "" {
		a.term.Note("tensors    fisub local --workload %s --dump DIR writes what %s was given, gave and should have given",
			plain.Short(wrong), plain.Short(wrong))
	}
	if text := session.Narrow(s, run); text != "" {
		a.term.Note("%s", text)
	}
	return verdict(result.Missing, result.Failed+before.Failed, result.Findings+before.Findings, o.strict)
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

// confineCommand becomes the program that its arguments are, behind -- and a list, as JSON, of the only folders and
// files that it may write to.
func (a *app) confineCommand() *cli.Command {
	run := func(c *cli.Context) error {
		var writable []string
		if c.NArg() < 3 || json.Unmarshal([]byte(c.Args().Get(1)), &writable) != nil {
			return usage.Errorf("", "confine: fisub starts this command itself")
		}
		return confine.Exec(writable, c.Args().Slice()[2:])
	}
	return &cli.Command{Name: "confine", ArgsUsage: "-- FOLDERS PROGRAM...", Hidden: true, SkipFlagParsing: true,
		Action: run}
}

func (a *app) workerCommand() *cli.Command {
	return &cli.Command{Name: "worker", Hidden: true, Action: func(c *cli.Context) error {
		return session.Work(c.Context, openers)
	}}
}

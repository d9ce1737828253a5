package session

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fisub/bench"
	"fisub/bench/runs"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

// A Local is what is asked of a run on this machine.
type Local struct {
	Options
	Resume    string // the run to go on with, as runs.Find takes it
	Dump      string // folder for the tensors of the first workload that does not pass
	FailFast  bool
	KeepGoing bool
	Budget    time.Duration // no workload begins later than that after the first; 0: no limit
}

// RunLocal runs s on this machine and keeps the run below its root. show gets its events too.
func (p *Project) RunLocal(ctx context.Context, s *Submission, o Local, show event.Sink, log Log) (
	total event.Done, err error) {
	folder, old, err := OpenResumed(s.Root, o.Resume)
	if err != nil {
		return total, err
	}
	if folder != nil {
		defer folder.Close()
	}
	if o.Prebuilt != "" {
		if o.Prebuilt, err = filepath.Abs(p.Path(o.Prebuilt)); err != nil {
			return total, err
		}
	}
	if o.Dump != "" {
		o.Dump = p.Path(o.Dump)
		if err := os.MkdirAll(o.Dump, 0o755); err != nil {
			return total, err
		}
	}
	u, err := p.NewLocal(ctx, s, o.Options, old, log)
	if err != nil {
		return total, err
	}
	if o.Budget > 0 {
		u.Workloads = evenly(u.Workloads)
	}
	run := u.Describe(ctx, s)
	run.BudgetS = o.Budget.Seconds()

	var before *runs.Summary
	var admit func(device.Info) error
	if old == nil {
		folder = runs.New(s.Root, run.ID)
		defer folder.Close()
	} else {
		if err = GoOn(old, run); err != nil {
			return total, err
		}
		before = &old.Summary
		admit = func(d device.Info) error { return SameDevice(old, d) }
		total = before.Totals()
		log.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, total.Passed+total.Failed, len(run.Workloads))
		if total.Failed > 0 {
			log.Note("           %d of them did not pass: fisub report %s lists them", total.Failed, run.ID)
		}
		total.Missing -= total.Left
		if !slices.ContainsFunc(u.Workloads, func(w *trace.Workload) bool { return !before.Judged(w.UUID) }) {
			return total, End(folder, old)
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
	shared.FailFast, shared.EndEarly, shared.Budget = o.FailFast, !o.KeepGoing, o.Budget
	result, err := bench.Run(ctx, shared, bench.Entry{Solution: s.Solution, Events: stream, Run: run,
		Admit: admit, Before: before, Dump: o.Dump})
	total = event.Done{Failed: result.Failed, Findings: result.Findings, Missing: result.Missing - result.Left}
	if result.Stopped && result.Failed > 0 {
		total.Missing = 0 // those that failed tell enough
	}
	if ctx.Err() != nil || result.Stopped && !result.Unbuilt {
		log.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return total, Machine(err)
	}
	if err := stream.Err(); err != nil {
		return total, err
	}
	log.Note("run folder %s", Relative(folder.Path()))
	if d := result.Dumped; d != nil {
		what := "inputs, expected and actual outputs"
		if !d.Actual {
			what = "inputs and expected outputs; the call gave none"
		}
		log.Note("dumped     %s, %.1f MB: %s", Relative(d.Path), float64(d.Bytes)/1e6, what)
	} else if wrong != "" {
		log.Note("tensors    fisub local --workload %s --dump DIR writes what %s was given, gave and should have given",
			plain.Short(wrong), plain.Short(wrong))
	}
	if text := Narrow(s, run); text != "" {
		log.Note("%s", text)
	}
	return total, nil
}

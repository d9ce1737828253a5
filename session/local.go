package session

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench"
	"fisub/bench/machine"
	"fisub/bench/runs"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/workloads"
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

// Totals count the workloads of a run, those from before it was resumed included.
type Totals struct{ Missing, Failed, Findings int }

// RunLocal runs s on this machine and keeps the run below its root. show gets its events too.
func (p *Project) RunLocal(ctx context.Context, s *Submission, o Local, show event.Sink, term *ui.Terminal) (
	total Totals, err error) {
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
	u, err := p.NewLocal(ctx, s, o.Options, old, term)
	if err != nil {
		return total, err
	}
	if o.Budget > 0 {
		u.Workloads = workloads.Evenly(u.Workloads)
	}
	run := u.Describe(ctx, s)
	run.BudgetS = o.Budget.Seconds()

	before := &Before{}
	var admit func(device.Info) error
	if old == nil {
		folder = runs.New(s.Root, run.ID)
		defer folder.Close()
	} else {
		if before, err = GoOn(old, run); err != nil {
			return total, err
		}
		total = Totals{Failed: before.Failed, Findings: before.Findings}
		admit = func(d device.Info) error { return SameDevice(old, d) }
		term.Note("resumed    %s: %d of %d workloads have a verdict", run.ID, len(before.Skip), len(u.Workloads))
		if before.Failed > 0 {
			term.Note("           %d of them did not pass: fisub report %s lists them", before.Failed, run.ID)
		}
		if len(before.Skip) == len(u.Workloads) {
			return total, End(folder, old)
		}
	}
	wrong := "" // the first workload that was called and did not pass
	stream := event.NewStream(folder.Record, show, func(e event.Event) error {
		if v := e.Evaluated; v != nil && wrong == "" && v.Status != string(trace.Passed) &&
			v.Status != string(trace.CompileError) {
			wrong = e.Workload
		}
		return nil
	})
	shared := u.Shared(s)
	shared.FailFast, shared.EndEarly, shared.Budget = o.FailFast, !o.KeepGoing, o.Budget
	result, err := bench.Run(ctx, shared, bench.Entry{Solution: s.Solution, Events: stream, Run: run,
		Admit: admit, Skip: before.Skip, TimedWith: before.Timer, Score: before.Score,
		Dump: o.Dump})
	if result.Missing -= result.Left; result.Stopped && result.Failed > 0 {
		result.Missing = 0 // those that failed tell enough
	}
	if ctx.Err() != nil || result.Stopped && !result.Unbuilt {
		term.Note("go on with: fisub local --resume %s", run.ID)
	}
	if err != nil {
		return total, machine.Invalid(err)
	}
	if err := stream.Err(); err != nil {
		return total, err
	}
	term.Note("run folder %s", plain.Relative(folder.Path()))
	if d := result.Dumped; d != nil {
		what := "inputs, expected and actual outputs"
		if !d.Actual {
			what = "inputs and expected outputs; the call gave none"
		}
		term.Note("dumped     %s, %.1f MB: %s", plain.Relative(d.Path), float64(d.Bytes)/1e6, what)
	} else if wrong != "" {
		term.Note("tensors    fisub local --workload %s --dump DIR writes what %s was given, gave and should have given",
			plain.Short(wrong), plain.Short(wrong))
	}
	if text := narrow(s, run); text != "" {
		term.Note("%s", text)
	}
	return Totals{result.Missing, result.Failed + total.Failed, result.Findings + total.Findings}, nil
}

// narrow describes the part of the contest's mix that the default set leaves out, or returns "" for another set.
func narrow(s *Submission, run *event.Run) string {
	mix, err := s.Data.Workloads(s.Definition.Name, workloads.ContestSet)
	if err != nil || run.Set != workloads.DefaultSet {
		return ""
	}
	var fixed []string
	for _, axis := range slices.Sorted(maps.Keys(run.Workloads[0].Axes)) {
		same := true
		for _, w := range run.Workloads {
			same = same && w.Axes[axis] == run.Workloads[0].Axes[axis]
		}
		least, most := math.MaxInt, 0
		for _, w := range mix {
			n, _ := w.Axes.Get(axis)
			least, most = min(least, n), max(most, n)
		}
		if same && most > least {
			fixed = append(fixed, fmt.Sprintf("%s %d only, the contest's mix %d to %d", axis, run.Workloads[0].Axes[axis], least,
				most))
		}
	}
	text := "set default is a small one"
	if len(fixed) > 0 {
		text = "set default has " + strings.Join(fixed, "; ")
	}
	return fmt.Sprintf("%s; fisub local --set %s runs all %d", text, workloads.ContestSet, len(mix))
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fisub/bench/reference"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A group is the solutions of a run and its baseline. They alternate on each workload, each in its own process, with
// the same inputs and expected outputs.
type group struct {
	shared    *Shared
	runners   []*runner
	baseline  *runner      // nil without one, or after it was given up
	unable    error        // why the baseline cannot run at all; reported once the run has begun
	functions *pyReference // nil if the definition has no functions in Python
	reference *pyReference // nil if bench/reference knows the definition; functions if they judge
	roofline  *roofline    // nil if not measured, or after it was given up
	stamper   stamper
	warned    map[string]bool
}

// newGroup returns a group for the caller to stop. It may return one together with an error.
func newGroup(ctx context.Context, shared *Shared, entries []Entry) (*group, error) {
	g := &group{shared: shared, warned: map[string]bool{}}
	g.stamper.open = shared.Meter
	evaluator, err := evaluatorOf(shared.Definition)
	if err != nil {
		return nil, err
	}
	if f := functionsOf(shared.Definition); f != nil {
		g.functions, err = newReference(ctx, shared, f, &g.stamper)
	}
	if evaluator == byFunctions {
		g.reference = g.functions
	} else if err == nil && !reference.Knows(shared.Definition) {
		g.reference, err = newReference(ctx, shared, nil, &g.stamper)
	}
	if err != nil {
		return nil, err
	}
	for i, entry := range entries {
		r, err := newRunner(ctx, shared, entry, evaluator, g.reference, &g.stamper)
		r.number = i
		g.runners = append(g.runners, r)
		if err != nil {
			return g, r.process.machineError(err)
		}
	}
	if b := shared.Baseline; b != nil {
		entry := Entry{Solution: b.Solution, Events: event.NewStream(), Run: &event.Run{}}
		g.baseline, g.unable = newRunner(ctx, shared, entry, evaluator, g.reference, &g.stamper)
		g.baseline.number = -1
		if isReference(b.Solution, shared.Definition) {
			g.baseline.process.def = returning(shared.Definition)
		}
	}
	if shared.Roofline {
		if g.roofline, err = newRoofline(ctx, shared, &g.stamper); err != nil {
			return g, err
		}
	}
	return g, nil
}

func (g *group) stop() {
	for _, r := range g.runners {
		r.process.stop()
	}
	if g.baseline != nil {
		g.baseline.process.stop()
	}
	if g.roofline != nil {
		g.roofline.stop()
	}
	for _, p := range slices.Compact([]*pyReference{g.functions, g.reference}) {
		if p != nil {
			p.stop()
		}
	}
	g.stamper.close()
}

func (g *group) run(ctx context.Context) error {
	for _, r := range g.runners {
		if err := r.open(ctx, ctx); err != nil {
			return err
		}
	}
	if g.unable != nil {
		g.giveUp(g.unable)
	}
	for i, w := range g.shared.Workloads {
		if g.runners[0].summary.Judged(w.UUID) {
			continue
		}
		if err := g.workload(ctx, i, w); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		left := 0
		for _, w := range g.shared.Workloads[i+1:] {
			if !g.runners[0].summary.Judged(w.UUID) {
				left++
			}
		}
		why, spent := g.stops(), g.shared.Budget > 0 && time.Since(g.runners[0].begun) > g.shared.Budget
		if why == "" && spent {
			why = fmt.Sprintf("stopped: budget of %v used up: %d of %s not run", g.shared.Budget, left,
				plain.Count(len(g.shared.Workloads), "workload"))
		} else {
			spent = false
		}
		if why != "" && left > 0 {
			g.warn("", errors.New(why))
			for _, r := range g.runners {
				if r.result.Stopped = true; spent {
					r.result.Left = left
				}
			}
			return nil
		}
	}
	return nil
}

// stops returns the reason to end the run now, or "".
func (g *group) stops() string {
	for _, r := range g.runners {
		switch s := g.shared; {
		case s.EndEarly && r.result.Unbuilt:
			return "stopped: the solution does not build; the other workloads were not run"
		case s.FailFast && r.failed:
			return "stopped at the first workload that does not pass; the others were not run"
		case s.EndEarly && r.timeouts >= 2:
			return "stopped: two timeouts in a row; the other workloads were not run"
		}
	}
	return ""
}

// workload takes one workload to the verdict on each solution. An error ends the run.
func (g *group) workload(ctx context.Context, index int, w *trace.Workload) error {
	var attempts []*attempt
	for _, r := range g.runners {
		attempts = append(attempts, r.begin(index, w))
	}
	trials, err := g.prepare(ctx, w)
	defer func() {
		for _, in := range trials {
			in.Close()
		}
	}()
	missing := err != nil // inputs or expected outputs
	var judged []*attempt
	for _, a := range attempts {
		if err != nil {
			break
		}
		if err = a.judge(ctx, trials); lacking(err) {
			a.fail(w, err)
			err = nil
			continue
		}
		judged = append(judged, a)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, unknown := errors.AsType[*referenceError](err); missing || unknown {
		for _, r := range g.runners {
			r.fail(w, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	base, err := g.time(ctx, judged, trials)
	if err != nil {
		return err
	}
	for _, a := range judged {
		if a.unknown != nil {
			a.fail(w, a.unknown)
			continue
		}
		if a.samples != nil {
			if b := a.entry.Before; b != nil && b.Timer() != "" && b.Timer() != a.samples.Timer {
				return &TimerError{Was: b.Timer(), Is: a.samples.Timer}
			}
			a.tell(base, g.roofline)
		}
		emit := func() { a.emit(g.comparable(a, base)) }
		if a.process.info.Emulated { // the verdict depends on the second call too
			a.printed += a.process.log()
		} else {
			emit()
		}
		if err := a.checkHonesty(ctx); err != nil {
			return err
		}
		if a.process.info.Emulated {
			a.process.log()
			if err := a.explain(ctx); err != nil {
				return err
			}
			emit()
		}
		a.tellFindings()
		a.tellHosted()
	}
	return nil
}

// prepare opens the inputs of w and runs a Python reference on them, if there is one. Trials get separate inputs if
// they differ and a call could remember an earlier one. The workload's time limit does not run. The caller closes the
// inputs even after an error.
func (g *group) prepare(ctx context.Context, w *trace.Workload) (trials []*inputs, err error) {
	r := g.runners[0]
	n := 1
	if workloads.Redrawn(g.shared.Definition, w) && (r.process.python || !r.process.info.Emulated) {
		n = g.shared.Profile.judged()
	}
	for i := range n {
		in, err := openInputs(ctx, g.shared, g.functions, r.evaluator, w, i)
		if err != nil {
			return trials, err
		}
		trials = append(trials, in)
		if g.reference != nil && in.made == nil {
			want, err := g.reference.run(ctx, in.load, in.size)
			if err != nil {
				return trials, err
			}
			in.want = expectedOf(g.shared.Definition, want, in.Values)
		}
		if r.process.info.Emulated && in.bytes > largeOnCPU {
			break
		}
	}
	return trials, nil
}

// largeOnCPU is the total size of a workload's tensors, in bytes, above which it is called only once without a GPU.
const largeOnCPU = 256 << 20

// time measures the passing attempts, alternating with the baseline if that passes too, and the workload's roofline.
// base holds the baseline's timings, or nil.
func (g *group) time(ctx context.Context, attempts []*attempt, trials []*inputs) (base *device.Samples, err error) {
	var timed []*attempt
	for _, a := range attempts {
		if a.verdict.status == trace.Passed && !a.process.info.Emulated {
			timed = append(timed, a)
		}
	}
	if len(timed) == 0 {
		return nil, nil
	}
	var b *attempt
	if g.baseline != nil {
		b = g.baseline.begin(attempts[0].index, attempts[0].workload)
		if err := b.judge(ctx, trials); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			g.giveUp(err)
		} else if g.qualifies(b) {
			timed = append(timed, b)
		}
	}
	varied, err := timed[0].vary(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		g.warn("", fmt.Errorf("no timed call has other inputs: %w", err))
	}
	if varied != nil && varied.other != nil {
		defer varied.other.Close()
	}
	for _, a := range timed {
		a.varied = varied
	}
	measure(ctx, timed)
	for _, a := range timed {
		if a.err == nil && a != b {
			a.measureWarm(ctx)
			a.measureBoard(ctx)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // some may have only part of their trials
	}
	for _, a := range timed {
		if a.err == nil {
			continue
		}
		a.samples, a.warm = nil, nil
		err := a.settle(ctx, a.err)
		switch {
		case a == b && err != nil:
			g.giveUp(err)
		case a == b:
			g.qualifies(b)
		case lacking(err):
			a.unknown = err
		case err != nil:
			return nil, err
		}
	}
	if first := timed[0]; g.roofline != nil && first.samples != nil && first != b {
		err := g.roofline.measure(ctx, first.runner, first.traffic(), timerOf(first.samples.Timer))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			g.warn("", fmt.Errorf("no comparison with the copy bandwidth: %w", err))
			g.roofline.stop()
			g.roofline = nil
		}
	}
	if g.baseline == nil || b == nil {
		return nil, nil
	}
	return b.samples, nil
}

// qualifies reports whether the baseline passed. Otherwise it warns, and nothing is compared with the baseline. A
// baseline that does not build or hangs is given up.
func (g *group) qualifies(b *attempt) bool {
	v, uuid := b.verdict, b.workload.UUID
	switch v.status {
	case trace.Passed:
		return true
	case trace.CompileError, trace.Timeout:
		g.giveUp(fmt.Errorf("%s: %s", v.status, v.detail))
	default:
		g.warn(uuid, fmt.Errorf("workload %s has no speed-up: baseline %s: %s: %s", uuid, g.shared.Baseline.Name,
			v.status, v.detail))
	}
	return false
}

// giveUp continues without the baseline.
func (g *group) giveUp(err error) {
	g.warn("", fmt.Errorf("no further speed-ups: baseline %s: %w", g.shared.Baseline.Name, err))
	g.baseline.process.stop()
	g.baseline = nil
}

// comparable returns the baseline's samples if a's can be compared with them, else nil.
func (g *group) comparable(a *attempt, base *device.Samples) *device.Samples {
	if base == nil || a.samples == nil {
		return nil
	}
	if base.Timer != a.samples.Timer {
		g.warn("", fmt.Errorf("no speed-up: baseline %s is timed with %s, the solution with %s",
			g.shared.Baseline.Name, base.Timer, a.samples.Timer))
		return nil
	}
	return base
}

// warn sends a warning to each run, unless it was sent before.
func (g *group) warn(uuid string, err error) {
	m := &event.Message{Text: err.Error(), Hint: hint.Of(err)}
	if g.warned[m.Text] {
		return
	}
	g.warned[m.Text] = true
	for _, r := range g.runners {
		r.say(event.Event{Type: event.TypeWarning, Workload: uuid, Message: m})
	}
}

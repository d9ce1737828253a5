package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fisub/bench/reference"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A lineup is the solutions of a run, and its baseline, which take turns at each workload: all on the same inputs, judged by
// the same expected outputs, each in its own process.
type lineup struct {
	runners   []*runner
	baseline  *runner      // nil without one, or since it was given up
	reference *pyReference // nil where bench/reference knows the definition
	floors    *floors      // nil where none are measured, or since they were given up
	gauge     gauge
	warned    map[string]bool
}

// newLineup returns a lineup to be stopped, also with some errors.
func newLineup(ctx context.Context, cs []Config) (*lineup, error) {
	l := &lineup{warned: map[string]bool{}}
	first := &cs[0]
	l.gauge.open = first.Meter
	evaluator, err := evaluatorOf(first.Definition)
	if err != nil {
		return nil, err
	}
	if !reference.Knows(first.Definition) {
		if l.reference, err = newReference(ctx, first); err != nil {
			return nil, err
		}
		l.reference.gauge = &l.gauge
	}
	add := func(c Config) (*runner, error) {
		r := &runner{Config: c, begun: time.Now(), evaluator: evaluator, reference: l.reference}
		var err error
		r.contender, err = newContender(ctx, first, first.Definition, c.Solution)
		r.gauge = &l.gauge
		return r, err
	}
	for _, c := range cs {
		c.Definition, c.Workloads, c.Profile, c.Timer, c.Load = first.Definition, first.Workloads, first.Profile, first.Timer, first.Load
		c.DeviceKind, c.Device, c.Baseline = first.DeviceKind, first.Device, first.Baseline
		r, err := add(c)
		l.runners = append(l.runners, r)
		if err != nil {
			return l, r.machineError(err)
		}
	}
	if b := first.Baseline; b != nil {
		c := *first
		c.Solution, c.Events, c.Run, c.Admit, c.TimedWith = b.Solution, event.NewStream(), &event.Run{}, nil, ""
		if l.baseline, err = add(c); err != nil {
			l.baseline.err = err // to be told when the run has begun
		}
	}
	if first.Floors {
		if l.floors, err = newFloors(ctx, first); err != nil {
			return l, err
		}
		l.floors.gauge = &l.gauge
	}
	return l, nil
}

func (l *lineup) stop() {
	for _, r := range l.runners {
		r.stop()
	}
	if l.baseline != nil {
		l.baseline.stop()
	}
	if l.floors != nil {
		l.floors.stop()
	}
	if l.reference != nil {
		l.reference.close()
	}
	l.gauge.close()
}

func (l *lineup) run(ctx context.Context) error {
	for _, r := range l.runners {
		if err := r.open(ctx, ctx); err != nil {
			return err
		}
	}
	if b := l.baseline; b != nil && b.err != nil {
		l.giveUp(b.err)
	}
	first := l.runners[0]
	for i, w := range first.Workloads {
		if first.Skip[w.UUID] {
			continue
		}
		if err := l.workload(ctx, i, w); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// workload takes one workload to the verdict on each solution. An error ends the run.
func (l *lineup) workload(ctx context.Context, index int, w *trace.Workload) error {
	for _, r := range l.runners {
		r.begin(index, w)
	}
	trials, err := l.prepare(ctx, w)
	defer func() {
		for _, t := range trials {
			t.in.Close()
		}
	}()
	if err == nil {
		err = l.judge(ctx, trials)
	} else if ctx.Err() == nil {
		err = &unjudged{err}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var none *unjudged
	var unknown *referenceError
	if errors.As(err, &none) || errors.As(err, &unknown) {
		for _, r := range l.runners {
			r.fail(w, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	base, err := l.time(ctx, index, w, trials)
	if err != nil {
		return err
	}
	for _, r := range l.runners {
		if r.samples != nil {
			if r.TimedWith != "" && r.samples.Timer != r.TimedWith {
				return &TimerError{Was: r.TimedWith, Is: r.samples.Timer}
			}
			r.tell(w.UUID, base, l.floors)
		}
		r.emit(w, index, l.comparable(r, base))
		if err := r.examine(ctx, w, trials[len(trials)-1], r.verdict, r.samples); err != nil {
			return err
		}
	}
	return nil
}

// An unjudged error says that a workload's inputs cannot be had.
type unjudged struct{ err error }

func (e *unjudged) Error() string { return e.err.Error() }

// prepare opens the inputs of w, of each trial where they differ and a call could remember one before, and runs a Python reference on them. The time limit of
// the workload is not for that. The caller closes the inputs also where there is an error.
func (l *lineup) prepare(ctx context.Context, w *trace.Workload) (trials []*trial, err error) {
	r := l.runners[0]
	n := 1
	if workloads.Redrawn(r.Definition, w) && (r.python || !r.info.Emulated) {
		n = r.Profile.Trials
	}
	for i := range n {
		in, err := r.Load(ctx, r.Definition, w, i)
		if err != nil {
			return trials, err
		}
		t := &trial{in: in}
		trials = append(trials, t)
		if err := r.describe(t); err != nil {
			return trials, err
		}
		if l.reference != nil {
			if t.want, err = l.reference.run(ctx, t.load, t.size); err != nil {
				return trials, err
			}
		}
		if r.info.Emulated && t.bytes > largeOnCPU {
			break
		}
	}
	return trials, nil
}

// largeOnCPU is the size of a workload's tensors, in bytes, above which it is called once where there is no GPU.
const largeOnCPU = 256 << 20

// judge gives each solution its verdict.
func (l *lineup) judge(ctx context.Context, trials []*trial) error {
	for _, r := range l.runners {
		r.bytes = trials[len(trials)-1].bytes
		if err := r.judge(ctx, trials); err != nil {
			return err
		}
	}
	return nil
}

// time measures the solutions that passed, in turn with the baseline if that passes too, and the floors of the workload. base
// are the baseline's timings, nil without any.
func (l *lineup) time(ctx context.Context, index int, w *trace.Workload, trials []*trial) (base *device.Samples, err error) {
	var timed []*runner
	for _, r := range l.runners {
		if r.verdict.status == trace.Passed && !r.info.Emulated {
			timed = append(timed, r)
		}
	}
	if len(timed) == 0 {
		return nil, nil
	}
	b := l.baseline
	if b != nil {
		b.begin(index, w)
		if err := b.judge(ctx, trials); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			l.giveUp(err)
		} else if l.qualifies(w) {
			timed = append(timed, b)
		}
	}
	measure(ctx, timed)
	for _, r := range timed {
		if r.err == nil && r != b {
			r.measureWarm(ctx)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // some may have a part of their trials
	}
	for _, r := range timed {
		if r.err == nil {
			continue
		}
		r.samples, r.warm = nil, nil
		err := r.settle(ctx, r.err)
		switch {
		case r == b && err != nil:
			l.giveUp(err)
		case r == b:
			l.qualifies(w)
		case err != nil:
			return nil, err
		}
	}
	if l.floors != nil {
		r := timed[0]
		if r.samples != nil && r != b {
			if err := l.floors.measure(ctx, r.Events, r.bytes, timerOf(r.samples.Timer)); ctx.Err() != nil {
				return nil, ctx.Err()
			} else if err != nil {
				l.warn("", fmt.Errorf("no share of the copy bandwidth: %w", err))
				l.floors.stop()
				l.floors = nil
			}
		}
	}
	if l.baseline == nil {
		return nil, nil
	}
	return l.baseline.samples, nil
}

// qualifies tells whether the baseline passed w. Where it did not, nothing is compared with it, and a warning says so; one
// that cannot be built or hangs is given up.
func (l *lineup) qualifies(w *trace.Workload) bool {
	b := l.baseline
	v := b.verdict
	switch v.status {
	case trace.Passed:
		return true
	case trace.CompileError, trace.Timeout:
		l.giveUp(fmt.Errorf("%s: %s", v.status, v.detail))
	default:
		l.warn(w.UUID, fmt.Errorf("workload %s has no speed-up: baseline %s: %s: %s", w.UUID, b.Baseline.Name, v.status, v.detail))
	}
	return false
}

// giveUp goes on without the baseline.
func (l *lineup) giveUp(err error) {
	l.warn("", fmt.Errorf("no speed-up from here on: baseline %s: %w", l.baseline.Baseline.Name, err))
	l.baseline.stop()
	l.baseline = nil
}

// comparable gives the baseline's timings where r's may be compared with them.
func (l *lineup) comparable(r *runner, base *device.Samples) *device.Samples {
	if base == nil || r.samples == nil {
		return nil
	}
	if base.Timer != r.samples.Timer {
		l.warn("", fmt.Errorf("no speed-up: baseline %s is timed with %s, the solution with %s", r.Baseline.Name, base.Timer, r.samples.Timer))
		return nil
	}
	return base
}

// warn tells each run, once.
func (l *lineup) warn(uuid string, err error) {
	m := &event.Message{Text: err.Error()}
	if l.warned[m.Text] {
		return
	}
	l.warned[m.Text] = true
	for _, r := range l.runners {
		if r.Hint != nil {
			m.Hint = r.Hint(err)
		}
		r.Events.Emit(event.Event{Type: event.TypeWarning, Workload: uuid, Message: m})
	}
}

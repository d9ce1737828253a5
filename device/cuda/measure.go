//go:build cuda && linux && cgo

package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorgonia.org/cu"

	"fisub/device"
	"fisub/device/activity"
	"fisub/device/cuda/cupti"
)

// estimates is the number of calls with which the official harness estimates the time of one, before the warm-up.
const estimates = 5

// Measure times call as the official harness does (spec section 6). A trial is one call, five more, the warm-up calls,
// and then Iterations timed calls, each after a zero-fill of twice the L2 if plan.ColdL2 is set.
//
// With CUPTI the device is idle when a timed call begins. The sample lasts from the start of the first to the end of
// the last kernel, copy or memset that the call launches, on any stream: gaps between kernels count, the time before
// the first does not. With events the sample is the time between an event before and an event after the call. It
// covers all work that the call launched on the device's stream and on the legacy default stream, including gaps, and
// the time before the first kernel if the fill ends before the CPU has launched it. Neither includes the fill.
//
// call is called on the device's goroutine. If plan.MaxTime ends a trial, it has fewer than Iterations samples (the
// first trial has at least one), and later trials are missing.
func (d *gpu) Measure(ctx context.Context, call func() error, plan device.Plan) (*device.Samples, error) {
	if plan.Iterations < 1 || plan.Trials < 1 || plan.Warmup < 0 {
		return nil, fmt.Errorf("cuda: cannot measure %d trials of %d iterations after %d warm-up calls",
			plan.Trials, plan.Iterations, plan.Warmup)
	}
	if plan.Timer != "" && !slices.Contains(device.Timers, plan.Timer) {
		return nil, fmt.Errorf("cuda: no timer %q", plan.Timer)
	}
	s := &device.Samples{ColdL2: plan.ColdL2}
	err := d.do(func() error {
		if d.inner {
			return errors.New("cuda: Measure called while measuring")
		}
		d.inner = true
		defer func() { d.inner = false }()
		if plan.Timer == device.TimerEvents {
			return d.withEvents(ctx, call, plan, s)
		}
		err := d.withCUPTI(ctx, call, plan, s)
		if !errors.Is(err, device.ErrTimer) || plan.Timer == device.TimerCUPTI {
			return err
		}
		s.TimerNote = err.Error()
		return d.withEvents(ctx, call, plan, s)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *gpu) withCUPTI(ctx context.Context, call func() error, plan device.Plan, s *device.Samples) error {
	lib, err := cupti.Open(d.cupti, cu.Version()/1000)
	if err != nil {
		return err
	}
	if err := lib.Begin(); err != nil {
		return err
	}
	s.Timer = "cupti"
	var first uint64
	solution := call
	call = func() error {
		if first == 0 {
			first = lib.Now()
		}
		return solution()
	}
	trials, err := trials(ctx, d, call, plan, s, func() (w activity.Window, err error) {
		if err := d.wait(ctx); err != nil {
			return w, err
		}
		w.Begin = lib.Now()
		if err := call(); err != nil {
			return w, err
		}
		w.End = lib.Now()
		err = d.wait(ctx)
		w.Idle = lib.Now()
		return w, err
	})
	if d.fault != nil {
		return err
	}
	records, lost := lib.End()
	if err != nil {
		return err
	}
	if lost != nil {
		return lost
	}
	return records.Sample(s, activity.Calls{Trials: trials, Apart: plan.Apart, Thread: cupti.Thread(), First: first})
}

// limitPersistingL2 is CU_LIMIT_PERSISTING_L2_CACHE_SIZE.
const limitPersistingL2 cu.Limit = 6

// settle waits until the GPU has been idle for quiet, for at most limit. Otherwise it notes that in s. Work of another
// process delays even an event, by up to a time slice.
func (d *gpu) settle(ctx context.Context, limit time.Duration, s *device.Samples) error {
	const quiet, slow = 5 * time.Millisecond, 200 * time.Microsecond
	begun := time.Now()
	since := begun
	for time.Since(since) < quiet {
		if time.Since(begun) > limit {
			s.Disturbed = append(s.Disturbed, device.Busy)
			return nil
		}
		asked := time.Now()
		if err := d.wait(ctx); err != nil {
			return err
		}
		if time.Since(asked) > slow {
			since = time.Now()
		}
		time.Sleep(slow)
	}
	return nil
}

func (d *gpu) withEvents(ctx context.Context, call func() error, plan device.Plan, s *device.Samples) (err error) {
	var events [2]cu.Event
	for i := range events {
		if events[i], err = cu.MakeEvent(cu.DefaultEvent); err != nil {
			return d.check("making an event", err)
		}
		defer func() { _ = cu.DestroyEvent(&events[i]) }()
	}
	start, end := events[0], events[1]
	s.Timer = "cuda events"
	s.Trials, err = trials(ctx, d, call, plan, s, func() (time.Duration, error) {
		if err := start.Record(d.strm); err != nil {
			return 0, d.check("recording an event", err)
		}
		if err := call(); err != nil {
			return 0, err
		}
		if err := end.Record(d.strm); err != nil {
			return 0, d.check("recording an event", err)
		}
		if err := d.waitFor(ctx, end); err != nil {
			return 0, err
		}
		// The receiver of Elapsed is the earlier event.
		ms, err := start.Elapsed(end)
		return time.Duration(ms * float64(time.Millisecond)), d.check("reading a timing", err)
	})
	if plan.Apart != nil {
		at := *plan.Apart
		for i, row := range s.Trials {
			if at >= 0 && at < len(row) {
				s.Trials[i] = slices.Delete(row, at, at+1)
			}
			at -= len(row)
		}
	}
	return err
}

// trials makes the calls of plan. timed makes one timed call, after the fill, and returns its sample. trials sets
// s.Truncated if time ran out.
func trials[T any](ctx context.Context, d *gpu, call func() error, plan device.Plan, s *device.Samples,
	timed func() (T, error)) (rows [][]T, err error) {
	renew := func(call int) error {
		if plan.Before == nil {
			return nil
		}
		return plan.Before(call)
	}
	prepare := renew
	if bytes := 2 * d.info.L2Bytes >> 20 << 20; plan.ColdL2 && bytes > 0 {
		ptr, err := cu.MemAlloc(bytes)
		if err != nil {
			return nil, d.check(fmt.Sprintf("allocating %d bytes to flush the L2", bytes), err)
		}
		defer func() { _ = cu.MemFree(ptr) }()
		prepare = func(call int) error {
			if err := renew(call); err != nil {
				return err
			}
			if call >= 0 && d.persisting { // the device is idle: the driver may wait for it
				if err := d.check("resetting the persisting lines of the L2", d.ctx.ResetL2Cache()); err != nil {
					return err
				}
			}
			return d.check("flushing the L2", cu.MemsetD8Async(ptr, 0, bytes, d.strm))
		}
	}
	if plan.Idle > 0 {
		if err := d.settle(ctx, plan.Idle, s); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	late := func() bool { return plan.MaxTime > 0 && time.Since(begin) > plan.MaxTime }
	repeat := func(n int) error {
		for i := 0; i < n && !late(); i++ {
			if err := prepare(-1); err != nil {
				return err
			}
			if err := call(); err != nil {
				return err
			}
		}
		return d.wait(ctx)
	}
	timings := 0
	for i := range plan.Trials {
		if err := renew(-1); err != nil {
			return nil, err
		}
		if err := call(); err != nil {
			return nil, err
		}
		if err := d.wait(ctx); err != nil {
			return nil, err
		}
		if err := repeat(estimates); err != nil {
			return nil, err
		}
		if err := repeat(plan.Warmup); err != nil {
			return nil, err
		}
		if i == 0 {
			plan.Tell(true)
		}
		row := make([]T, 0, min(plan.Iterations, 1<<16)) // MaxTime may end it much earlier
		for len(row) < plan.Iterations && (!late() || len(rows) == 0 && len(row) == 0) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := prepare(timings); err != nil {
				return nil, err
			}
			sample, err := timed()
			if err != nil {
				return nil, err
			}
			row = append(row, sample)
			if plan.After != nil {
				if err := plan.After(timings); err != nil {
					return nil, err
				}
			}
			timings++
		}
		if len(row) > 0 {
			rows = append(rows, row)
		}
		if late() {
			break
		}
	}
	s.Truncated = len(rows) < plan.Trials || len(rows[plan.Trials-1]) < plan.Iterations
	if err := d.wait(ctx); err != nil {
		return nil, err
	}
	plan.Tell(false)
	if kept, err := cu.Limits(limitPersistingL2); err == nil && kept != d.reserved {
		s.PersistingL2 = kept
	}
	return rows, nil
}

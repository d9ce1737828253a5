package bench

import (
	"context"
	"slices"
	"time"

	"fisub/bench/stats"
	"fisub/device"
	"fisub/internal/event"
)

// remeasure is how often a workload is measured again whose timings are in doubt.
const remeasure = 2

// measure times the workload in flight, again where the device says that something disturbed it, and returns the last
// samples, disturbed or not. It counts in r.measured.
func (r *runner) measure(ctx context.Context) (*device.Samples, error) {
	for r.measured = 1; ; r.measured++ {
		samples, err := r.sample(ctx)
		if err != nil || len(samples.Disturbed) == 0 || r.measured > remeasure {
			return samples, err
		}
	}
}

// sample takes the profile's trials, and where it has a target further ones until the interval of the median is as narrow,
// or its time is over.
func (r *runner) sample(ctx context.Context) (*device.Samples, error) {
	begun := time.Now()
	p := r.Profile
	plan := device.Plan{Warmup: p.Warmup, Iterations: p.Iterations, Trials: p.Trials, ColdL2: true, Timer: r.Timer, MaxTime: p.MaxTime}
	all, err := r.client.Measure(ctx, plan)
	if err != nil {
		return nil, err
	}
	plan.Trials = 1
	plan.Timer = timerOf(all.Timer) // no change of timer within a workload
	for !stats.Enough(all.Trials, p.Trials, p.Target) {
		left := p.MaxTime - time.Since(begun)
		if all.Truncated || left <= 0 {
			all.Truncated = true
			break
		}
		plan.MaxTime = left
		more, err := r.client.Measure(ctx, plan)
		if err != nil {
			return nil, err
		}
		all.Trials = append(all.Trials, more.Trials...)
		all.Stamp, all.Truncated = more.Stamp, more.Truncated
		for _, d := range more.Disturbed {
			if !slices.Contains(all.Disturbed, d) {
				all.Disturbed = append(all.Disturbed, d)
			}
		}
	}
	return all, nil
}

// timerOf is the plan's word for the timer of samples.
func timerOf(samples string) string {
	if samples == device.TimerCUPTI {
		return device.TimerCUPTI
	}
	return device.TimerEvents
}

// tell emits the samples of a workload, after a warning where they are not by the timer that the contest uses.
func (r *runner) tell(uuid string, s *device.Samples) {
	if s.TimerNote != "" && s.TimerNote != r.noted {
		r.noted = s.TimerNote
		r.Events.Emit(event.Event{Type: event.TypeWarning, Workload: uuid, Message: &event.Message{
			Text: "timed with CUDA events, which count launch gaps that the contest's CUPTI timing does not: " + s.TimerNote}})
	}
	out := eventSamples(s, r.bytes)
	out.Measured = r.measured
	r.Events.Emit(event.Event{Type: event.TypeSamples, Workload: uuid, Samples: out})
}

// eventSamples adds the figures; bytes are those of the workload's tensors.
func eventSamples(s *device.Samples, bytes int64) *event.Samples {
	sum := stats.Summarize(s.Trials)
	out := &event.Samples{Timer: s.Timer, TimerNote: s.TimerNote, ColdL2: s.ColdL2, MedianNS: stats.Latency(s.Trials), MinNS: int64(sum.Min),
		N: sum.N, Q1NS: sum.Q1, Q2NS: sum.Median, Q3NS: sum.Q3, MeanNS: sum.Mean, Bytes: bytes, Warnings: sum.Warnings,
		Interval:  event.Interval{LoNS: sum.Lo, HiNS: sum.Hi, Width: sum.Width(), Confidence: sum.Confidence},
		Truncated: s.Truncated, Kernels: s.Kernels, Stamp: s.Stamp, Disturbed: s.Disturbed}
	if out.MedianNS > 0 {
		out.Bandwidth = float64(bytes) / out.MedianNS
	}
	for _, trial := range s.Trials {
		row := make([]int64, len(trial))
		for i, d := range trial {
			row[i] = d.Nanoseconds()
		}
		out.TrialsNS = append(out.TrialsNS, row)
	}
	return out
}

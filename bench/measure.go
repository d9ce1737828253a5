package bench

import (
	"context"

	"fisub/device"
	"fisub/internal/event"
)

// remeasure is how often a workload is measured again whose timings are in doubt.
const remeasure = 2

// measure times the workload in flight, again where the device says that something disturbed it, and returns the last
// samples, disturbed or not. It counts in r.measured.
func (r *runner) measure(ctx context.Context, plan device.Plan) (*device.Samples, error) {
	for r.measured = 1; ; r.measured++ {
		samples, err := r.client.Measure(ctx, plan)
		if err != nil || len(samples.Disturbed) == 0 || r.measured > remeasure {
			return samples, err
		}
	}
}

// tell emits the samples of a workload, after a warning where they are not by the timer that the contest uses.
func (r *runner) tell(uuid string, s *device.Samples) {
	if s.TimerNote != "" && s.TimerNote != r.noted {
		r.noted = s.TimerNote
		r.Events.Emit(event.Event{Type: event.TypeWarning, Workload: uuid, Message: &event.Message{
			Text: "timed with CUDA events, which count launch gaps that the contest's CUPTI timing does not: " + s.TimerNote}})
	}
	out := &event.Samples{Timer: s.Timer, TimerNote: s.TimerNote, ColdL2: s.ColdL2, MedianNS: Latency(s), Truncated: s.Truncated,
		Kernels: s.Kernels, Stamp: s.Stamp, Measured: r.measured, Disturbed: s.Disturbed}
	for _, trial := range s.Trials {
		row := make([]int64, len(trial))
		for i, d := range trial {
			row[i] = d.Nanoseconds()
			if out.N == 0 || row[i] < out.MinNS {
				out.MinNS = row[i]
			}
			out.N++
		}
		out.TrialsNS = append(out.TrialsNS, row)
	}
	r.Events.Emit(event.Event{Type: event.TypeSamples, Workload: uuid, Samples: out})
}

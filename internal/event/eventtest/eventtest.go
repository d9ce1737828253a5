// Package eventtest makes events for tests.
package eventtest

import (
	"maps"
	"slices"

	"fisub/internal/event"
	"fisub/internal/trace"
)

// A Verdict is a verdict on a workload. All fields are optional.
type Verdict struct {
	UUID             string
	Index            int
	Axes             map[string]int
	Status           string
	MaxAbs, MaxRel   float64
	Latency, Speedup *float64
	Detail, Log      string
}

// Evaluated returns the payload of an evaluated event. Its trace can be decoded again.
func (v Verdict) Evaluated() *event.Evaluated {
	name := "s"
	e := &trace.Evaluation{Status: trace.Status(v.Status), Environment: trace.Environment{Hardware: "h"}, Timestamp: "t", Log: v.Log}
	switch e.Status {
	case trace.Passed:
		e.Performance = &trace.Performance{}
		if v.Latency != nil {
			e.Performance.LatencyMS = *v.Latency
		}
		fallthrough
	case trace.IncorrectNumerical:
		e.Correctness = &trace.Correctness{MaxAbsoluteError: v.MaxAbs, MaxRelativeError: v.MaxRel}
	}
	t := &trace.Trace{Definition: "d", Workload: trace.Workload{UUID: v.UUID}, Solution: &name, Evaluation: e}
	for _, axis := range slices.Sorted(maps.Keys(v.Axes)) {
		t.Workload.Axes.Set(axis, v.Axes[axis])
	}
	return &event.Evaluated{Index: v.Index, Trace: t, Detail: v.Detail, Ratio: v.Speedup}
}

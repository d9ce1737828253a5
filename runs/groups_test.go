package runs

import (
	"slices"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
)

// Workloads with the same axes form one group. Those that failed or were not timed do not affect its figures.
func TestGroups(t *testing.T) {
	ms := func(us float64) *float64 { v := us / 1e3; return &v }
	x := func(v float64) *float64 { return &v }
	row := func(batch int, status string, latency, speedup *float64) Row {
		r := Row{Axes: map[string]int{"batch_size": batch}}
		if status != "" {
			r.Evaluated = eventtest.Verdict{Status: status, Latency: latency, Speedup: speedup}.Evaluated()
		}
		if latency != nil {
			r.Samples = &event.Samples{CopyShare: 0.5}
		}
		return r
	}
	got := Groups([]Row{row(16, "PASSED", ms(8), x(2)), row(-1, "PASSED", nil, nil), row(4, "PASSED", ms(2), x(1)),
		row(4, "PASSED", ms(4), x(2)), row(4, "TIMEOUT", nil, nil), row(4, "", nil, nil)})
	var order []int
	for _, g := range got {
		order = append(order, g.Axes["batch_size"])
	}
	if want := []int{-1, 4, 16}; !slices.Equal(order, want) {
		t.Fatalf("groups: got %v, want %v", order, want)
	}
	if g := got[1]; g.Workloads != 4 || g.Passed != 2 || g.Timed != 2 || g.Mean != 3000 || g.Low != 2000 || g.High != 4000 ||
		g.Speedup == nil || *g.Speedup != 1.5 || g.CopyShare != 0.5 {
		t.Errorf("batch 4: got %+v", g)
	}
	if g := got[0]; g.Mean != 0 || g.Speedup != nil || g.Passed != 1 {
		t.Errorf("not timed: got %+v", g)
	}
}

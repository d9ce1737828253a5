package runs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// A Group is the workloads of a run that have the same axes. Times are nanoseconds, of those of its workloads that
// passed and were timed; 0 and nil where there are none.
type Group struct {
	Axes            map[string]int
	Workloads       int
	Passed, Timed   int
	Mean, Low, High float64  // official latency
	Speedup         *float64 // mean over the baseline
	CopyShare       float64  // mean
}

// Groups puts the rows together by their axes, in ascending order of the values.
func Groups(rows []Row) []Group {
	by, speedups, shares := map[string]*Group{}, map[*Group][]float64{}, map[*Group][]float64{}
	for _, row := range rows {
		key := axesKey(row.Axes)
		g := by[key]
		if g == nil {
			g = &Group{Axes: row.Axes}
			by[key] = g
		}
		g.Workloads++
		e := row.Evaluated
		if e == nil || e.Status != string(trace.Passed) {
			continue
		}
		g.Passed++
		if e.Latency == nil || row.Samples == nil {
			continue
		}
		ns := *e.Latency * 1e6
		if g.Timed++; g.Timed == 1 {
			g.Low = ns
		}
		g.Mean, g.Low, g.High = g.Mean+ns, min(g.Low, ns), max(g.High, ns)
		if e.Speedup != nil {
			speedups[g] = append(speedups[g], *e.Speedup)
		}
		if row.Samples.CopyShare > 0 {
			shares[g] = append(shares[g], row.Samples.CopyShare)
		}
	}
	var list []Group
	for _, key := range slices.Sorted(maps.Keys(by)) {
		g := by[key]
		g.Mean /= float64(max(g.Timed, 1))
		if all := speedups[g]; len(all) > 0 {
			x := mean(all)
			g.Speedup = &x
		}
		if all := shares[g]; len(all) > 0 {
			g.CopyShare = mean(all)
		}
		list = append(list, *g)
	}
	return list
}

func mean(all []float64) (m float64) {
	for _, v := range all {
		m += v / float64(len(all))
	}
	return m
}

// axesKey orders as the axes' values do.
func axesKey(axes map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(axes)) {
		fmt.Fprintf(&b, "%q %020d\n", name, uint64(axes[name])+math.MaxInt64+1)
	}
	return b.String()
}

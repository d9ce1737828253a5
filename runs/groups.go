package runs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// A Group is the workloads of a run with the same axes. Each figure covers the passed workloads that have it; times
// are nanoseconds, and missing figures are 0 or nil.
type Group struct {
	Axes            map[string]int
	Rows            []Row
	Workloads       int
	Passed, Timed   int
	Mean, Low, High float64  // official latency
	Speedup         *float64 // mean over the baseline
	CopyShare       float64  // mean
}

// Groups groups the rows by their axes, in ascending order of the values.
func Groups(rows []Row) (list []Group) {
	by := map[string][]Row{}
	for _, row := range rows {
		key := axesKey(row.Axes)
		by[key] = append(by[key], row)
	}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		list = append(list, groupOf(by[key]))
	}
	return list
}

func groupOf(rows []Row) Group {
	g := Group{Axes: rows[0].Axes, Rows: rows, Workloads: len(rows), Passed: (&Summary{Rows: rows}).Totals().Passed}
	var latencies, speedups, shares []float64
	for _, row := range rows {
		if !row.Passed() {
			continue
		}
		if ms := row.Evaluated.Latency(); ms != nil {
			latencies = append(latencies, *ms*1e6)
		}
		if x := row.Evaluated.Speedup(); x != nil {
			speedups = append(speedups, *x)
		}
		if row.Samples != nil && row.Samples.CopyShare > 0 {
			shares = append(shares, row.Samples.CopyShare)
		}
	}
	if g.Timed = len(latencies); g.Timed > 0 {
		g.Mean, g.Low, g.High = mean(latencies), slices.Min(latencies), slices.Max(latencies)
	}
	if len(speedups) > 0 {
		g.Speedup = new(mean(speedups))
	}
	if len(shares) > 0 {
		g.CopyShare = mean(shares)
	}
	return g
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, v := range all {
		sum += v
	}
	return sum / float64(len(all))
}

// axesKey returns a key that sorts like the axes' values.
func axesKey(axes map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(axes)) {
		fmt.Fprintf(&b, "%q %020d\n", name, uint64(axes[name])+math.MaxInt64+1)
	}
	return b.String()
}

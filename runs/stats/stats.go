// Package stats computes figures from the timings of one workload: the official latency and measures of its
// reliability. Timings are whole nanoseconds of a T, one row per trial; figures are float64 nanoseconds. Rows are
// only read. To compare two solutions, use runs/compare.
package stats

import (
	"slices"

	"golang.org/x/perf/benchmath"
)

// Latency returns the official figure: the mean of the trials' medians (spec section 6). It ignores trials without
// timings and returns 0 without samples.
func Latency[T ~int64](trials [][]T) float64 {
	var sum float64
	n := 0
	for _, trial := range trials {
		if len(trial) == 0 {
			continue
		}
		sum += quantile(sorted([][]T{trial}), 0.5)
		n++
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// A Summary describes all timings of one workload, regardless of their trial.
type Summary struct {
	N                        int
	Min, Q1, Median, Q3, Max float64 // quartiles are interpolated between the two nearest timings
	Mean                     float64
	Lo, Hi                   float64  // interval of the median
	Confidence               float64  // that the median is between Lo and Hi: 0.95 or slightly more; less with a warning
	Warnings                 []string // qualifications of the figures
}

// confidence is the requested level of the interval of the median.
const confidence = 0.95

// least is the smallest number of timings with an interval at that level: 1 - 2^(1-6) = 0.969.
const least = 6

// Summarize returns the summary of all timings. The interval of the median assumes no distribution: Lo and Hi are
// timings chosen by the binomial distribution, or by its normal approximation above 30 timings
// (benchmath.AssumeNothing). It assumes independent timings, so it does not cover a drift that they share. With fewer
// than 6 timings it is the whole range, with a warning.
func Summarize[T ~int64](trials [][]T) Summary {
	all := sorted(trials)
	n := len(all)
	if n == 0 {
		return Summary{Warnings: []string{"no timings"}}
	}
	s := Summary{N: n, Min: all[0], Q1: quantile(all, 0.25), Median: quantile(all, 0.5), Q3: quantile(all, 0.75),
		Max: all[n-1]}
	for _, v := range all {
		s.Mean += v / float64(n)
	}
	if n < least {
		s.Lo, s.Hi, s.Confidence = s.Min, s.Max, 1
		for range n - 1 {
			s.Confidence /= 2
		}
		s.Confidence = 1 - s.Confidence
		s.Warnings = []string{"fewer than 6 timings: the median's interval is their range"}
		return s
	}
	ci := benchmath.AssumeNothing.Summary(benchmath.NewSample(all, &benchmath.DefaultThresholds), confidence)
	s.Lo, s.Hi, s.Confidence = ci.Lo, ci.Hi, ci.Confidence
	for _, w := range ci.Warnings {
		s.Warnings = append(s.Warnings, w.Error())
	}
	return s
}

// Width returns the relative width of the interval: (Hi - Lo) / Median, or 0 if the median is 0.
func (s Summary) Width() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Hi - s.Lo) / s.Median
}

// Enough reports whether sampling can stop. Call it between trials: after every timing, it would stop at the first
// interval that is narrow by chance. It requires atLeast trials and, if target is above 0, a relative width of the
// interval (Summary.Width) of at most target. The caller handles the time limit.
func Enough[T ~int64](trials [][]T, atLeast int, target float64) bool {
	if len(trials) < atLeast || target <= 0 {
		return len(trials) >= atLeast
	}
	s := Summarize(trials)
	return s.N >= least && s.Width() <= target
}

// Same returns the p-value for equal distributions of the timings in a and b: the two-sided Mann-Whitney U test
// (benchmath.AssumeNothing). It is 1, with a warning, for too few timings. Like the interval, it assumes that timings
// are independent.
func Same[T ~int64](a, b [][]T) (p float64, warnings []string) {
	c := benchmath.AssumeNothing.Compare(benchmath.NewSample(sorted(a), &benchmath.DefaultThresholds),
		benchmath.NewSample(sorted(b), &benchmath.DefaultThresholds))
	for _, w := range c.Warnings {
		warnings = append(warnings, w.Error())
	}
	return c.P, warnings
}

// MidMedian returns the median of the mid-distribution function (Ma, Genton and Parzen 2011): half of a value's
// occurrences count as below it, and the function is interpolated linearly between the distinct values. A GPU's timer
// has ticks of 32 ns, more than 1 % of a short kernel, so the plain median jumps between ticks even for the same
// kernel. This one follows the share of timings on each tick smoothly; without ties it equals the plain median up to
// half a gap. values are ascending, counts holds the occurrences of each. It returns 0 without values.
func MidMedian(values []float64, counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	half := float64(total) / 2
	below, lastAt := 0.0, 0.0
	last := -1 // index of the previous value
	for i, c := range counts {
		if c == 0 {
			continue
		}
		at := below + float64(c)/2
		if at >= half {
			if last < 0 {
				return values[i]
			}
			return values[last] + (values[i]-values[last])*(half-lastAt)/(at-lastAt)
		}
		below, last, lastAt = below+float64(c), i, at
	}
	if last < 0 {
		return 0
	}
	return values[last]
}

// A Score adds up the contest's score of a solution on one definition: the mean speed-up over the workloads that the
// baseline passes, or 0 if the solution fails any workload (spec section 5). The zero value has no workloads.
type Score struct {
	sum    float64
	n      int
	failed bool
}

// Add adds the speed-up on a workload.
func (s *Score) Add(speedup float64) {
	s.sum += speedup
	s.n++
}

// Fail adds a workload that the solution does not pass.
func (s *Score) Fail() { s.failed = true }

// Value returns the score and the number of workloads in its mean. ok is false without a score.
func (s *Score) Value() (score float64, n int, ok bool) {
	if s.failed || s.n == 0 {
		return 0, s.n, s.failed
	}
	return s.sum / float64(s.n), s.n, true
}

// sorted returns all timings in ascending order.
func sorted[T ~int64](trials [][]T) []float64 {
	var all []float64
	for _, trial := range trials {
		for _, v := range trial {
			all = append(all, float64(v))
		}
	}
	slices.Sort(all)
	return all
}

// quantile interpolates linearly between ascending values, from the smallest at 0 to the largest at 1. The median of
// an even number of values is the mean of the middle two.
func quantile(values []float64, q float64) float64 {
	at := q * float64(len(values)-1)
	i := int(at)
	if i+1 >= len(values) {
		return values[len(values)-1]
	}
	return values[i] + (values[i+1]-values[i])*(at-float64(i))
}

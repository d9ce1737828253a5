// Package stats turns the timings of one workload into figures: the official latency, and beside it what tells how
// far to believe it. Timings are whole nanoseconds of a T, a row for each trial; figures are float64 nanoseconds.
// Rows are read only. It is not for comparing two solutions: that is bench/compare.
package stats

import (
	"slices"

	"golang.org/x/perf/benchmath"
)

// Latency is the official figure: the median of each trial's timings, and the mean of those medians (spec section 6). A
// trial without timings does not count; it is 0 without samples.
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

// A Summary describes all timings of one workload together, whatever their trial.
type Summary struct {
	N                        int
	Min, Q1, Median, Q3, Max float64 // quartiles are interpolated between the two nearest timings
	Mean                     float64
	Lo, Hi                   float64  // interval of the median
	Confidence               float64  // that the median lies between Lo and Hi: 0.95 or just above, less with a warning
	Warnings                 []string // what the figures should be read with
}

// confidence is the level that the interval of the median is asked for.
const confidence = 0.95

// least is the smallest number of timings that has an interval at that level: 1 - 2^(1-6) = 0.969.
const least = 6

// Summarize gives the summary of all timings. The interval of the median takes no distribution for granted: Lo and Hi
// are two of the sorted timings, so far from the middle that by the binomial distribution the median lies between
// them with the confidence asked for (benchmath.AssumeNothing; above 30 timings by its normal approximation). It
// supposes that timings are independent, so it does not see a drift that all timings of a run share. With fewer than
// 6 timings the interval is the whole range, and a warning says so.
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
		s.Warnings = []string{"fewer than 6 timings: the interval of the median is their range"}
		return s
	}
	ci := benchmath.AssumeNothing.Summary(benchmath.NewSample(all, &benchmath.DefaultThresholds), confidence)
	s.Lo, s.Hi, s.Confidence = ci.Lo, ci.Hi, ci.Confidence
	for _, w := range ci.Warnings {
		s.Warnings = append(s.Warnings, w.Error())
	}
	return s
}

// Width is the relative width of the interval: (Hi - Lo) / Median, 0 where the median is 0.
func (s Summary) Width() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Hi - s.Lo) / s.Median
}

// Enough is the rule by which sampling stops; it is asked between trials, since a look after every single timing
// would stop at the first interval that is narrow by chance. There are at least atLeast trials. A target of 0 asks
// for no more than them; else trials go on until the relative width of the interval (Summary.Width) is at most
// target, a fraction of the median. The time limit is the caller's.
func Enough[T ~int64](trials [][]T, atLeast int, target float64) bool {
	if len(trials) < atLeast || target <= 0 {
		return len(trials) >= atLeast
	}
	s := Summarize(trials)
	return s.N >= least && s.Width() <= target
}

// Same gives the probability of timings that differ as much as those of a and b, or more, if both came from one
// distribution: the two-sided Mann-Whitney U test (benchmath.AssumeNothing). It is 1, with a warning, where there are
// too few timings to tell anything. Like the interval it supposes that timings are independent.
func Same[T ~int64](a, b [][]T) (p float64, warnings []string) {
	c := benchmath.AssumeNothing.Compare(benchmath.NewSample(sorted(a), &benchmath.DefaultThresholds),
		benchmath.NewSample(sorted(b), &benchmath.DefaultThresholds))
	for _, w := range c.Warnings {
		warnings = append(warnings, w.Error())
	}
	return c.P, warnings
}

// MidMedian is the median of the mid-distribution function (Ma, Genton and Parzen 2011): a value counts as lying half
// below itself, and the function is interpolated linearly between the distinct values. A GPU's timer ticks in 32 ns,
// more than 1 % of a short kernel, and the plain median of such timings jumps from tick to tick, also where the kernel
// is the same; this one moves smoothly with the share of timings on either tick, and for timings without ties it is the
// plain median but for half of one gap. values are ascending, counts say how often each occurs; it is 0 without any.
func MidMedian(values []float64, counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	half := float64(total) / 2
	below, lastAt := 0.0, 0.0
	last := -1 // index of the value before
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

// A Score adds up the contest's score of a solution on one definition: the mean, over the workloads that the baseline
// passes, of the baseline's latency over the solution's, and 0 where the solution fails any workload (spec section
// 5). The zero value is that of no workload.
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

// Value gives the score, and over how many workloads it is the mean; ok is false where there is none.
func (s *Score) Value() (score float64, n int, ok bool) {
	if s.failed || s.n == 0 {
		return 0, s.n, s.failed
	}
	return s.sum / float64(s.n), s.n, true
}

// sorted gives all timings in ascending order.
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

// quantile interpolates linearly between the order statistics of ascending values, the smallest at 0 and the largest
// at 1; of an even number the median is the mean of the middle two.
func quantile(values []float64, q float64) float64 {
	at := q * float64(len(values)-1)
	i := int(at)
	if i+1 >= len(values) {
		return values[len(values)-1]
	}
	return values[i] + (values[i+1]-values[i])*(at-float64(i))
}

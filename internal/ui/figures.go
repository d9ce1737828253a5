package ui

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// A Figure is a column of the table of workloads, on the terminal and in reports.
type Figure struct {
	Heading string
	Title   string // explains the column in reports; "" if they lack it
	Timed   bool   // a time, or derived from times
	Kept    bool   // reports have it even if it is unknown for all workloads
	Detail  bool   // the Markdown report of a timed run lacks it
	Front   int    // order of the columns in front of the axes on a page; 0: behind them

	width int  // on the terminal, which lacks the column if 0
	order int  // order in which columns are hidden on a narrow terminal; 0: never
	omit  bool // the run has no such figure

	// Value returns the figure of a workload. Either argument may be nil.
	Value func(e *event.Evaluated, s *event.Samples) Value
}

// A Value is a figure as text, and with all its digits. Both are "" if the figure is unknown.
type Value struct{ Text, Exact string }

// Figures returns the figures of a run's workloads in the order of their columns. It includes times only if timed.
// Median and Min are there twice, because the terminal and reports place and round them differently.
func Figures(r *event.Run, timed bool) []Figure {
	const errorWidth, timeWidth, shareWidth = len("1.00e-07"), len("1234.56 us"), len("100 %")
	baseline, copyWidth := "", 0
	if r.Baseline != nil {
		baseline = plain.Cut(plain.Line(r.Baseline.Name), 24)
	}
	if r.Floors {
		copyWidth = shareWidth
	}
	list := []Figure{
		{Heading: "Max abs", Title: "largest absolute error", Detail: true, Front: 4, width: errorWidth, order: 3,
			omit:  r.Functions,
			Value: func(e *event.Evaluated, _ *event.Samples) Value { abs, _ := e.Errors(); return Error(abs) }},
		{Heading: "Max rel", Title: "largest relative error", Detail: true, Front: 5, width: errorWidth, order: 5,
			omit:  r.Functions,
			Value: func(e *event.Evaluated, _ *event.Samples) Value { _, rel := e.Errors(); return Error(rel) }},
		{Heading: "Matched", Title: "share of correct elements", Detail: true, Value: matched},
		{Heading: "Median", Timed: true, width: timeWidth, Value: latency},
		{Heading: "Median", Title: "official latency", Timed: true, Kept: true, Front: 2,
			Value: ofTimings(func(s *event.Samples) Value { return Nanos(s.MedianNS) })},
		{Heading: "±", Title: "half of the 95 % interval of the median", Timed: true, Kept: true, Front: 3,
			width: shareWidth, order: 2, Value: ofTimings(func(s *event.Samples) Value {
				exact := timings(&event.Timings{MedianNS: s.MedianNS, N: s.N, Interval: s.Interval}).Exact
				return Value{Spread(s.Interval), exact}
			})},
		{Heading: "Speed-up", Title: "latency of " + baseline + " over the median", Timed: true, width: len("SPEEDUP"),
			omit:  r.Baseline == nil,
			Value: func(e *event.Evaluated, _ *event.Samples) Value { return Speedup(e.Speedup()) }},
		{Heading: "Min", Timed: true, width: timeWidth, order: 1, omit: r.Baseline != nil,
			Value: ofTimings(func(s *event.Samples) Value { return Nanos(float64(s.MinNS)) })},
		{Heading: "Copy", Title: "share of the bandwidth of the roofline copy, a plain copy of as many bytes", Timed: true,
			width: copyWidth, order: 4, Value: ofTimings(func(s *event.Samples) Value {
				return positive(s.CopyShare, Percent(s.CopyShare), Exact(s.CopyShare)+"; the copy takes "+ExactNS(s.CopyNS))
			})},
		{Heading: "Board", Title: "mean of times between CUDA events, as the task's board computes it", Timed: true,
			width: timeWidth, omit: r.Ranking == "", Value: ofTimings(func(s *event.Samples) Value {
				if s.Board == nil {
					return Value{}
				}
				return Nanos(s.Board.Mean)
			})},
		{Heading: "Min", Title: "fastest call", Timed: true, Kept: true, Detail: true,
			Value: ofTimings(func(s *event.Samples) Value { return Nanos(float64(s.MinNS)) })},
		{Heading: "GB/s", Title: "bytes of all inputs and outputs over the median", Timed: true, Detail: true,
			Value: ofTimings(func(s *event.Samples) Value {
				return positive(s.Bandwidth, fmt.Sprintf("%.0f", s.Bandwidth), Exact(s.Bandwidth)+" GB/s")
			})},
		{Heading: "Peak", Title: "share of the bandwidth of the GPU's memory, by its specification", Timed: true,
			Detail: true, Value: ofTimings(func(s *event.Samples) Value { return Share(s.PeakShare) })},
		{Heading: "Warm L2", Title: "with a warm L2; not the contest's figure", Timed: true, Detail: true,
			Value: ofTimings(func(s *event.Samples) Value { return timings(s.Warm) })},
		{Heading: baseline, Title: "latency of the baseline, from alternating trials", Timed: true, Kept: true,
			omit: r.Baseline == nil, Value: ofTimings(func(s *event.Samples) Value { return timings(s.Baseline) })},
	}
	return slices.DeleteFunc(list, func(f Figure) bool { return f.omit || f.Timed && !timed })
}

// onTerminal returns the text of the figure: "-" if it is unknown, or "" without a verdict or timings.
func (f Figure) onTerminal(e *event.Evaluated, s *event.Samples) string {
	if e == nil || f.Timed && e.Latency() == nil {
		return ""
	}
	v := f.Value(e, s)
	if v.Text == "" && (s != nil || !f.Timed) {
		return "-"
	}
	return v.Text
}

// furtherFigures returns the figures of a workload without a column on the terminal.
func furtherFigures(s *event.Samples, baseline bool) string {
	rate, fastest := fmt.Sprintf("%.0f GB/s", s.Bandwidth), ""
	if s.PeakShare > 0 {
		rate += fmt.Sprintf(" (%s of the memory's peak)", Percent(s.PeakShare))
	}
	if baseline {
		fastest = Micros(float64(s.MinNS))
	}
	list := []string{rate}
	for _, f := range [][2]string{{"min ", fastest}, {"warm L2 ", timings(s.Warm).Text},
		{"baseline ", timings(s.Baseline).Text}, {"copy ", Nanos(s.CopyNS).Text}} {
		if f[1] != "" {
			list = append(list, f[0]+f[1])
		}
	}
	return strings.Join(list, ", ")
}

// ofTimings returns a function that passes the timings to value unless they are nil.
func ofTimings(value func(*event.Samples) Value) func(*event.Evaluated, *event.Samples) Value {
	return func(_ *event.Evaluated, s *event.Samples) Value {
		if s == nil {
			return Value{}
		}
		return value(s)
	}
}

// latency returns the official latency of the trace, which may be rounded differently from the median of the timings.
func latency(e *event.Evaluated, _ *event.Samples) Value {
	if e != nil && e.Latency() != nil {
		return Nanos(*e.Latency() * 1e6)
	}
	return Value{}
}

// matched returns the share of correct elements if the evaluator of the definition records it.
func matched(e *event.Evaluated, _ *event.Samples) Value {
	if e == nil || e.Trace.Evaluation.Correctness == nil || e.Trace.Evaluation.Correctness.Extra == nil {
		return Value{}
	}
	share := -1.0
	switch v, _ := e.Trace.Evaluation.Correctness.Extra.Get("matched_ratio"); v := v.(type) {
	case float64:
		share = v
	case int64:
		share = float64(v)
	}
	if !(share >= 0 && share <= 1) {
		return Value{}
	}
	hundredths := math.Floor(1e4*share + 1e-6) // rounded down, so that 100 % means all
	return Value{fmt.Sprintf("%g %%", hundredths/100), Exact(share)}
}

// timings returns a median with its interval.
func timings(t *event.Timings) Value {
	if t == nil {
		return Value{}
	}
	i := t.Interval
	return Value{Micros(t.MedianNS) + " ± " + Spread(i), fmt.Sprintf("%s, n %d, median of all timings from %s to %s",
		ExactNS(t.MedianNS), t.N, ExactNS(i.LoNS), ExactNS(i.HiNS))}
}

func positive(v float64, text, exact string) Value {
	if !(v > 0) {
		return Value{}
	}
	return Value{text, exact}
}

// Nanos returns a time, which is unknown unless it is above 0.
func Nanos(ns float64) Value { return positive(ns, Micros(ns), ExactNS(ns)) }

// Share returns a share, which is unknown unless it is above 0.
func Share(share float64) Value { return positive(share, Percent(share), Exact(share)) }

// Speedup returns a speed-up, which is unknown if x is nil.
func Speedup(x *float64) Value {
	if x == nil {
		return Value{}
	}
	return Value{Times(*x), Exact(*x)}
}

// Error returns the size of an error, which is unknown if f is nil.
func Error(f *float64) Value {
	if f == nil {
		return Value{}
	}
	return Value{fmt.Sprintf("%.2e", *f), Exact(*f)}
}

// Exact formats a number with all its digits.
func Exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// ExactNS formats a time with all its digits.
func ExactNS(ns float64) string { return strconv.FormatFloat(ns, 'f', -1, 64) + " ns" }

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

	// Cell returns the figure of a workload, and the same with all its digits. They are "" if it is unknown. Either
	// argument may be nil.
	Cell func(e *event.Evaluated, s *event.Samples) (text, exact string)
}

// Figures returns the figures of a run's workloads in the order of their columns. It includes times only if timed.
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
			Cell: func(e *event.Evaluated, _ *event.Samples) (string, string) { abs, _ := e.Errors(); return Error(abs) }},
		{Heading: "Max rel", Title: "largest relative error", Detail: true, Front: 5, width: errorWidth, order: 5,
			Cell: func(e *event.Evaluated, _ *event.Samples) (string, string) { _, rel := e.Errors(); return Error(rel) }},
		{Heading: "Matched", Title: "share of correct elements", Detail: true, Cell: matched},
		{Heading: "Median", Timed: true, width: timeWidth, Cell: latency},
		{Heading: "Median", Title: "official latency", Timed: true, Kept: true, Front: 2,
			Cell: of(func(s *event.Samples) (string, string) { return Nanos(s.MedianNS) })},
		{Heading: "±", Title: "half of the 95 % interval of the median", Timed: true, Kept: true, Front: 3,
			width: shareWidth, order: 2, Cell: of(func(s *event.Samples) (string, string) {
				return Spread(s.Interval), exactInterval(s.MedianNS, s.N, s.Interval)
			})},
		{Heading: "Speed-up", Title: "latency of " + baseline + " over the median", Timed: true, width: len("SPEEDUP"),
			omit: r.Baseline == nil,
			Cell: func(e *event.Evaluated, _ *event.Samples) (string, string) { return Speedup(e.Speedup()) }},
		{Heading: "Min", Timed: true, width: timeWidth, order: 1, omit: r.Baseline != nil,
			Cell: of(func(s *event.Samples) (string, string) { return Nanos(float64(s.MinNS)) })},
		{Heading: "Copy", Title: "share of the bandwidth of the roofline copy, a plain copy of as many bytes", Timed: true,
			width: copyWidth, order: 4, Cell: of(func(s *event.Samples) (string, string) {
				text, exact := Share(s.CopyShare)
				return text, exact + "; the copy takes " + ExactNS(s.CopyNS)
			})},
		{Heading: "Min", Title: "fastest call", Timed: true, Kept: true, Detail: true,
			Cell: of(func(s *event.Samples) (string, string) { return Nanos(float64(s.MinNS)) })},
		{Heading: "GB/s", Title: "bytes of all inputs and outputs over the median", Timed: true, Detail: true,
			Cell: of(func(s *event.Samples) (string, string) { return bandwidth(s.Bandwidth) })},
		{Heading: "Peak", Title: "share of the bandwidth of the GPU's memory, by its specification", Timed: true,
			Detail: true, Cell: of(func(s *event.Samples) (string, string) { return Share(s.PeakShare) })},
		{Heading: "Warm L2", Title: "with a warm L2; not the contest's figure", Timed: true, Detail: true,
			Cell: of(func(s *event.Samples) (string, string) { return timings(s.Warm) })},
		{Heading: baseline, Title: "latency of the baseline, from alternating trials", Timed: true, Kept: true,
			omit: r.Baseline == nil, Cell: of(func(s *event.Samples) (string, string) { return timings(s.Baseline) })},
	}
	return slices.DeleteFunc(list, func(f Figure) bool { return f.omit || f.Timed && !timed })
}

// cell returns the text of the figure on the terminal: "-" if a workload with a verdict or timings lacks it.
func (f Figure) cell(e *event.Evaluated, s *event.Samples) string {
	if e == nil || f.Timed && e.Latency() == nil {
		return ""
	}
	text, _ := f.Cell(e, s)
	if text == "" && (s != nil || !f.Timed) {
		return "-"
	}
	return text
}

// furtherFigures returns the figures of a workload without a column on the terminal.
func furtherFigures(s *event.Samples, baseline bool) string {
	rate := fmt.Sprintf("%.0f GB/s", s.Bandwidth)
	if s.PeakShare > 0 {
		rate += fmt.Sprintf(" (%s of the memory's peak)", Percent(s.PeakShare))
	}
	list := []string{rate}
	if baseline {
		list = append(list, "min "+Micros(float64(s.MinNS)))
	}
	if warm, _ := timings(s.Warm); warm != "" {
		list = append(list, "warm L2 "+warm)
	}
	if theirs, _ := timings(s.Baseline); theirs != "" {
		list = append(list, "baseline "+theirs)
	}
	if s.CopyNS > 0 {
		list = append(list, "copy "+Micros(s.CopyNS))
	}
	return strings.Join(list, ", ")
}

// of returns the function of a figure that depends on the timings only.
func of(cell func(*event.Samples) (string, string)) func(*event.Evaluated, *event.Samples) (string, string) {
	return func(_ *event.Evaluated, s *event.Samples) (string, string) {
		if s == nil {
			return "", ""
		}
		return cell(s)
	}
}

// latency formats the official latency of the trace, which may be rounded differently from the median of the timings.
func latency(e *event.Evaluated, _ *event.Samples) (text, exact string) {
	if e == nil || e.Latency() == nil {
		return "", ""
	}
	return Nanos(*e.Latency() * 1e6)
}

// matched formats the share of correct elements if the evaluator of the definition records it.
func matched(e *event.Evaluated, _ *event.Samples) (text, exact string) {
	if e == nil || e.Trace.Evaluation.Correctness == nil || e.Trace.Evaluation.Correctness.Extra == nil {
		return "", ""
	}
	share := -1.0
	switch v, _ := e.Trace.Evaluation.Correctness.Extra.Get("matched_ratio"); v := v.(type) {
	case float64:
		share = v
	case int64:
		share = float64(v)
	}
	if !(share >= 0 && share <= 1) {
		return "", ""
	}
	hundredths := math.Floor(1e4*share + 1e-6) // rounded down, so that 100 % means all
	return fmt.Sprintf("%g %%", hundredths/100), Exact(share)
}

func bandwidth(gbs float64) (text, exact string) {
	if !(gbs > 0) {
		return "", ""
	}
	return fmt.Sprintf("%.0f", gbs), Exact(gbs) + " GB/s"
}

// timings formats a median with its interval.
func timings(t *event.Timings) (text, exact string) {
	if t == nil {
		return "", ""
	}
	return Micros(t.MedianNS) + " ± " + Spread(t.Interval), exactInterval(t.MedianNS, t.N, t.Interval)
}

func exactInterval(ns float64, n int, i event.Interval) string {
	return fmt.Sprintf("%s, n %d, median of all timings from %s to %s", ExactNS(ns), n, ExactNS(i.LoNS), ExactNS(i.HiNS))
}

// Nanos formats a time, and the same with all its digits. Both are "" unless ns is above 0.
func Nanos(ns float64) (text, exact string) {
	if !(ns > 0) {
		return "", ""
	}
	return Micros(ns), ExactNS(ns)
}

// Share formats a share, and the same with all its digits. Both are "" unless it is above 0.
func Share(share float64) (text, exact string) {
	if !(share > 0) {
		return "", ""
	}
	return Percent(share), Exact(share)
}

// Speedup formats a speed-up, and the same with all its digits. Both are "" for nil.
func Speedup(x *float64) (text, exact string) {
	if x == nil {
		return "", ""
	}
	return Times(x), Exact(*x)
}

// Error formats the size of an error, and the same with all its digits. Both are "" for nil.
func Error(f *float64) (text, exact string) {
	if f == nil {
		return "", ""
	}
	return ErrorText(f), Exact(*f)
}

// Exact formats a number with all its digits.
func Exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// ExactNS formats a time with all its digits.
func ExactNS(ns float64) string { return strconv.FormatFloat(ns, 'f', -1, 64) + " ns" }

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/runs"
	"fisub/runs/compare"
)

// A chart is as wide as the page allows. Its heights are in pixels and its widths in thousandths of the plot, so texts
// and marks have one size on every screen.
type chart struct {
	ID           string
	Title, Desc  string
	XName, YName string

	H, Top, Bottom float64 // height of the chart; edges of the plot
	XTicks, YTicks []tick
	Lines          []line
	Bands          []band
	Marks          []mark // if empty, there is nothing to show
	Legend         []legend
}

// plotWidth is the width of every plot, in its own units.
const plotWidth = 1000

type tick struct {
	At    float64
	Label string // "" for a tick without a label
	Wide  string // class of a label that only a wide chart has room for, or ""
}

type line struct{ Class, Path string }

type band struct{ Y, Height float64 }

type mark struct {
	Class    string
	Path     string // centred on 0, 0
	X, Y     float64
	Title    string
	Workload string
	Small    bool // about half as large
	Interval bool // draw an error bar from Lo to Hi
	Lo, Hi   float64
}

type legend struct{ Class, Path, Text string }

// A point is one workload in a chart. All values are positive; an unknown value is 0.
type point struct {
	axes          map[string]int
	value, lo, hi float64
	title         string
	workload      string
}

// A series is a set of points with one shape, or a line.
type series struct {
	name   string
	class  string
	shape  string // "" for a line
	hollow bool
	points []point
}

// The shapes are centred on 0, 0.
const (
	circle       = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"
	square       = "M-3.6-3.6h7.2v7.2h-7.2z"
	diamond      = "M0-5L5 0 0 5-5 0z"
	triangleUp   = "M0-4.8L4.8 3.8h-9.6z"
	triangleDown = "M0 4.8L-4.8-3.8h9.6z"
	cross        = "M-1.9-4.8h3.8v2.9h2.9v3.8h-2.9v2.9h-3.8v-2.9h-2.9v-3.8h2.9z"
)

var shapes = []string{circle, square, diamond, triangleUp, triangleDown, cross}

// axisValues returns the set of values that each axis takes.
func axisValues(workloads []runs.Row) map[string]map[int]bool {
	values := map[string]map[int]bool{}
	for _, w := range workloads {
		for name, n := range w.Axes {
			if values[name] == nil {
				values[name] = map[int]bool{}
			}
			values[name][n] = true
		}
	}
	return values
}

// spreadAxis returns the horizontal axis of charts: batch_size if it varies, else the axis with the most values. It
// returns "" if no axis varies. Axes with the value 0 do not qualify: the scale is logarithmic.
func spreadAxis(workloads []runs.Row) string {
	values := axisValues(workloads)
	best := ""
	for name, seen := range values {
		if len(seen) < 2 || seen[0] {
			continue
		}
		more := best == "" || len(seen) > len(values[best]) || len(seen) == len(values[best]) && name < best
		if name == "batch_size" || best != "batch_size" && more {
			best = name
		}
	}
	return best
}

// measured returns the series of the workloads that ran at place (all if ""): solution, baseline, plain copy and empty
// kernel.
func (r *Subject) measured(place string) (own, theirs, copied, empty series) {
	baseline := ""
	if b := r.Run.Run.Baseline; b != nil {
		baseline = clean(b.Name, 24)
	}
	own = series{name: "solution", class: "solution"}
	theirs = series{name: "baseline " + baseline, class: "baseline", hollow: true}
	copied = series{name: "roofline copy", class: "copy"}
	empty = series{name: "empty kernel, " + ui.Micros(r.empty()), class: "empty"}
	for j := range r.Workloads {
		w := &r.Workloads[j]
		s := w.Samples
		if s == nil || place != "" && w.Place != place || s.MedianNS <= 0 {
			continue
		}
		own.points = append(own.points, timed(w, "", s.MedianNS, s.Interval))
		if s.Baseline != nil && s.Baseline.MedianNS > 0 {
			theirs.points = append(theirs.points, timed(w, baseline+": ", s.Baseline.MedianNS, s.Baseline.Interval))
		}
		if s.CopyNS > 0 {
			copied.points = append(copied.points, point{axes: w.Axes, value: s.CopyNS})
		}
		if s.EmptyNS > 0 {
			empty.points = append(empty.points, point{axes: w.Axes, value: s.EmptyNS})
		}
	}
	return own, theirs, copied, empty
}

// latency returns the chart of the run's latencies, or nil if nothing was timed.
func (r *Subject) latency(id string) *chart {
	axis := spreadAxis(r.Workloads)
	_, l2 := r.conditions()
	if !r.Split() {
		own, theirs, copied, empty := r.measured("")
		own.shape, theirs.shape = circle, square
		return latencies(id, axis, l2, []series{theirs, own}, []series{copied, empty})
	}
	var all, lines []series
	for i, p := range r.Places {
		own, theirs, copied, _ := r.measured(p.Name)
		own.shape = shapes[i%len(shapes)]
		theirs.shape = own.shape
		for _, s := range []*series{&theirs, &own, &copied} {
			s.name += " on " + clean(p.Name, 40)
		}
		all, lines = append(all, theirs, own), append(lines, copied)
	}
	return latencies(id, axis, l2, all, lines)
}

// mostRuns is the maximum number of runs in one chart.
const mostRuns = 6

// latency returns a chart of up to mostRuns runs that share the first run's definition and were timed on a single GPU,
// with the first baseline and the first copy among them. It returns nil for fewer than two runs or for different L2
// states.
func (r *Report) latency(id string) *chart {
	var all, lines []series
	var l2 string
	var theirs, copied, empty series
	for i, run := range r.Runs {
		if !run.Timed || run.Split() || run.Run.Run.Definition != r.Runs[0].Run.Run.Definition || len(all) == mostRuns {
			continue
		}
		own, b, c, e := run.measured("")
		own.name, own.class, own.shape = r.name(run), fmt.Sprintf("run%d", len(all)), shapes[len(all)]
		for n := range own.points {
			own.points[n].title = own.name + ": " + own.points[n].title
		}
		all = append(all, own)
		if len(theirs.points) == 0 {
			theirs = b
			theirs.name += ", in run " + clean(r.Runs[i].ID, 60)
			theirs.shape = square
		}
		if len(copied.points) == 0 {
			copied, empty = c, e
		}
		_, state := run.conditions()
		if l2 = cmp.Or(l2, state); l2 != state {
			return nil // the latencies are not comparable
		}
	}
	if len(all) < 2 {
		return nil
	}
	lines = append(lines, copied, empty)
	return latencies(id, spreadAxis(r.Runs[0].Workloads), l2, append([]series{theirs}, all...), lines)
}

// latencies draws the series along axis, or returns nil without series.
func latencies(id, axis, l2 string, all, lines []series) *chart {
	none := func(s series) bool { return len(s.points) == 0 }
	all, lines = slices.DeleteFunc(all, none), slices.DeleteFunc(lines, none)
	if len(all) == 0 {
		return nil
	}
	lo, hi := span(all)
	c := &chart{ID: id, Title: "Latency by " + axisName(axis), XName: axisName(axis), YName: "µs, " + l2 + " L2",
		Desc: fmt.Sprintf("%s from %s to %s, %s L2. Bars are the 95 %% intervals of the medians. The workload tables "+
			"contain all figures.", plain.Count(len(all), "series"), ui.Micros(lo), ui.Micros(hi), l2)}
	c.draw(axis, append(all, lines...), func(ns float64) string { return trim(ns / 1e3) }, 0)
	return c
}

func timed(w *runs.Row, prefix string, ns float64, i event.Interval) point {
	return point{w.Axes, ns, i.LoNS, i.HiNS, fmt.Sprintf("%s%s, workload %s: %s, median of all timings from %s to %s",
		prefix, axesText(w.Axes), plain.Short(w.UUID), ui.Micros(ns), ui.Micros(i.LoNS), ui.Micros(i.HiNS)),
		clean(w.UUID, 120)}
}

func axisName(axis string) string {
	if axis == "" {
		return "workload, in order"
	}
	return clean(axis, 40)
}

// speedups returns the chart of the speed-ups over the baseline, or nil for fewer than two.
func (r *Subject) speedups(id string) *chart {
	b := r.Run.Run.Baseline
	if b == nil || r.Emulated {
		return nil
	}
	axis := spreadAxis(r.Workloads)
	s := series{name: "speed-up over " + clean(b.Name, 24), class: "solution", shape: circle}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		if over := w.Evaluated.Speedup(); over != nil && *over > 0 {
			s.points = append(s.points, point{axes: w.Axes, value: *over, workload: clean(w.UUID, 120),
				title: fmt.Sprintf("%s, workload %s: %s", axesText(w.Axes), plain.Short(w.UUID), ui.Times(*over))})
		}
	}
	if len(s.points) < 2 {
		return nil
	}
	lo, hi := span([]series{s})
	c := &chart{ID: id, Title: fmt.Sprintf("Speed-up over %s by %s", clean(b.Name, 40), axisName(axis)),
		XName: axisName(axis), YName: "times as fast",
		Desc: fmt.Sprintf("%s, from %s to %s; above 1 the solution is faster.", plain.Count(len(s.points), "workload"),
			ui.Times(lo), ui.Times(hi))}
	c.draw(axis, []series{s}, func(v float64) string { return trim(v) + "x" }, 1)
	return c
}

// chart returns the chart of the ratios, or nil without ratios.
func (c *Comparison) chart(id string) *chart {
	axis := spreadAxis(c.A.Workloads)
	by := []series{{name: "faster", class: "good", shape: triangleDown}, {name: "same", class: "same", shape: circle},
		{name: "unclear", class: "unclear", shape: diamond, hollow: true}, {name: "slower", class: "bad", shape: triangleUp}}
	n := 0
	for _, row := range c.Result.Rows {
		i := slices.Index([]compare.Verdict{compare.Faster, compare.Same, compare.Unclear, compare.Slower}, row.Verdict)
		if i < 0 || row.Ratio == nil || !(row.Ratio.Value > 0) {
			continue
		}
		ratio, interval := RatioText(row.Ratio)
		by[i].points = append(by[i].points, point{row.Axes, row.Ratio.Value, row.Ratio.Lo, row.Ratio.Hi,
			fmt.Sprintf("%s, workload %s: %s, interval %s, %s", axesText(row.Axes), plain.Short(row.UUID), ratio, interval,
				row.Verdict), clean(row.UUID, 120)})
		n++
	}
	if n == 0 {
		return nil
	}
	lo, hi := span(by)
	chart := &chart{ID: id, Title: "B's time over A's, by " + axisName(axis), XName: axisName(axis), YName: "B/A",
		Desc: fmt.Sprintf(
			"%s, from %.3f to %.3f, with 95 %% intervals; below 1 B is faster. The shaded band is the threshold of %.3g %%.",
			plain.Count(n, "workload"), lo, hi, 100*c.Result.Threshold)}
	chart.draw(axis, by, trim, 1, 1/(1+c.Result.Threshold), 1+c.Result.Threshold)
	return chart
}

// drawable drops values that no measurement can have.
func drawable(points []point) []point {
	sane := func(v float64) bool { return v >= 1e-6 && v <= 1e18 }
	points = slices.DeleteFunc(points, func(p point) bool { return !sane(p.value) })
	for i, p := range points {
		if !sane(p.lo) || !sane(p.hi) {
			points[i].lo, points[i].hi = 0, 0
		}
	}
	return points
}

// span returns the smallest and the largest positive value of the points.
func span(all []series) (lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, s := range all {
		for _, p := range s.points {
			if v := p.value; v > 0 {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return lo, hi
}

// draw fills in the chart with logarithmic scales. It draws a line at unit if that is positive, and a band between the
// two limits. If axis is "", the points keep their order.
func (c *chart) draw(axis string, all []series, label func(float64) string, unit float64, limits ...float64) {
	for i := range all {
		all[i].points = drawable(all[i].points)
	}
	all = slices.DeleteFunc(all, func(s series) bool { return len(s.points) == 0 })
	if !slices.ContainsFunc(all, func(s series) bool { return s.shape != "" }) {
		return
	}
	lo, hi := math.Inf(1), 0.0
	reach := func(v float64) {
		if v > 0 {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	for _, v := range append(slices.Clone(limits), unit) {
		reach(v)
	}
	var at []int // distinct values of the axis, ascending
	most := 0
	for _, s := range all {
		for _, p := range s.points {
			reach(p.value)
			reach(p.lo)
			reach(p.hi)
			if s.shape != "" {
				at = append(at, p.axes[axis])
			}
		}
		if s.shape != "" {
			most = max(most, len(s.points))
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)
	values := scaleTicks(lo, hi)
	lo, hi = values[0], values[len(values)-1]

	crowd := crowded(axis, all)
	inset, part := 40.0, 0.6 // distance of the outermost points from the edges; share of the axis for groups of points
	if crowd {
		inset, part = 50, 0.8
	}
	c.H, c.Top, c.Bottom = 360, 26, 318
	y := func(v float64) float64 {
		if !(v > 0) {
			return c.Bottom
		}
		share := math.Log(v/lo) / math.Log(hi/lo)
		return c.Bottom - math.Max(-0.02, math.Min(1.02, share))*(c.Bottom-c.Top)
	}
	inner := plotWidth - 2*inset
	x := func(v, i int) float64 {
		switch {
		case axis == "" && most < 2, axis != "" && len(at) < 2:
			return plotWidth / 2
		case axis == "":
			return inset + inner*float64(i)/float64(most-1)
		}
		return inset + inner*math.Log(float64(max(v, 1))/float64(max(at[0], 1)))/math.Log(
			float64(at[len(at)-1])/float64(max(at[0], 1)))
	}
	last := math.Inf(-1)
	for i, v := range values {
		if t := y(v); i == 0 || math.Abs(t-last) >= 22 {
			c.YTicks = append(c.YTicks, tick{At: t, Label: label(v)})
			last = t
		}
	}
	room := 2*inset - 20 // for workloads of one value, next to each other
	for i := 1; i < len(at); i++ {
		room = min(room, part*(x(at[i], 0)-x(at[i-1], 0)))
	}
	if axis != "" {
		for _, v := range at {
			c.XTicks = append(c.XTicks, tick{At: x(v, 0)})
		}
		labelTicks(c.XTicks, func(i int) string { return fmt.Sprint(at[i]) })
	}
	if len(limits) == 2 {
		c.Bands = []band{{y(limits[1]), y(limits[0]) - y(limits[1])}}
	}
	if unit > 0 {
		c.Lines = append(c.Lines, line{"unit", fmt.Sprintf("M0 %.1fH%d", y(unit), plotWidth)})
	}
	const stroke = "M-11 0h22"
	for _, s := range all {
		if s.shape == "" {
			c.Lines = append(c.Lines, line{s.class, s.line(axis, x, y)})
			c.Legend = append(c.Legend, legend{"line " + s.class, stroke, s.name})
			continue
		}
		c.Legend = append(c.Legend, legend{s.classes(), s.shape, s.name})
		group, seen := map[int]int{}, map[int]int{}
		for _, pt := range s.points {
			group[pt.axes[axis]]++
		}
		for i, pt := range s.points {
			v := pt.axes[axis]
			px := x(v, i)
			if n := group[v]; axis != "" && n > 1 {
				px += min(room, 10*float64(n-1)) * (float64(seen[v])/float64(n-1) - 0.5)
				seen[v]++
			}
			c.Marks = append(c.Marks, mark{Class: s.classes(), Path: s.shape, X: px, Y: y(pt.value), Title: pt.title,
				Workload: pt.workload, Small: crowd,
				Interval: pt.lo > 0 && pt.hi > pt.lo, Lo: y(pt.lo), Hi: y(pt.hi)})
		}
	}
	if unit > 0 && len(all) == 1 && len(limits) == 0 {
		c.Legend = append(c.Legend, legend{"line unit", stroke, "as fast as the baseline"})
	}
}

// crowded reports whether a series has more than four points of one value of the axis.
func crowded(axis string, all []series) bool {
	for _, s := range all {
		group := map[int]int{}
		for _, p := range s.points {
			group[p.axes[axis]]++
			if axis != "" && s.shape != "" && group[p.axes[axis]] > 4 {
				return true
			}
		}
	}
	return false
}

// labelTicks labels the ticks that have room in charts of three widths. style.css hides the labels that only wider
// charts have room for. The last tick always has a label.
func labelTicks(ticks []tick, label func(int) string) {
	const digit, gap = 7.7, 6.0 // pixels
	last := len(ticks) - 1
	for _, c := range []struct {
		class  string
		pixels float64 // least width of the plot
	}{{"", 265}, {"wide", 500}, {"wider", 1000}} {
		fits := func(i, j int) bool {
			widths := digit / 2 * float64(len(label(i))+len(label(j)))
			return (ticks[j].At-ticks[i].At)*c.pixels/plotWidth >= widths+gap
		}
		left := -1 // the nearest labelled tick
		for i := range ticks {
			right := i + 1
			for right < last && ticks[right].Label == "" {
				right++
			}
			if ticks[i].Label == "" && (left < 0 || fits(left, i)) && (i == last || fits(i, right)) {
				ticks[i].Label, ticks[i].Wide = label(i), c.class
			}
			if ticks[i].Label != "" {
				left = i
			}
		}
	}
}

func (s *series) classes() string {
	if s.hollow {
		return s.class + " hollow"
	}
	return s.class
}

// line returns a path through the points, or a horizontal line if there is only one.
func (s *series) line(axis string, x func(v, i int) float64, y func(float64) float64) string {
	type vertex struct{ x, y float64 }
	var path []vertex
	for i, p := range s.points {
		path = append(path, vertex{x(p.axes[axis], i), y(p.value)})
	}
	if axis != "" {
		slices.SortFunc(path, func(a, b vertex) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(b.y, a.y)) })
		path = slices.Compact(path)
	}
	if len(path) == 1 {
		return fmt.Sprintf("M0 %.1fH%d", path[0].y, plotWidth)
	}
	var b strings.Builder
	for i, p := range path {
		fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], p.x, p.y)
	}
	return b.String()
}

// scaleTicks returns ticks of a logarithmic scale from at most lo to at least hi: 1, 2 and 5 in each decade, or even
// steps if that gives too few.
func scaleTicks(lo, hi float64) (list []float64) {
	if hi/lo < 3 {
		step := niceStep(max((hi-lo)/4, lo/100))
		first := math.Floor(lo/step*(1+1e-9)) * step
		if first <= 0 {
			first = lo
		}
		for i := 0; ; i++ {
			v := first + float64(i)*step
			list = append(list, v)
			if v >= hi*(1-1e-12) && len(list) > 1 {
				return list
			}
		}
	}
	for decade := math.Pow(10, math.Floor(math.Log10(lo))-1); ; decade *= 10 {
		for _, m := range []float64{1, 2, 5} {
			v := m * decade
			if v <= lo*(1+1e-9) {
				list = nil // an even smaller tick is not needed
			}
			list = append(list, v)
			if v >= hi*(1-1e-9) && len(list) > 1 {
				return list
			}
		}
	}
}

// niceStep rounds v up to 1, 2, 2.5 or 5 times a power of ten.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*p >= v*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// trim formats v with about three digits and no trailing zeros.
func trim(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	s := fmt.Sprintf("%.3f", v)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

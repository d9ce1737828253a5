package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"fisub/bench/compare"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/ui"
)

// A chart is a picture whose positions are computed. Each is drawn twice: wide, and narrow for a phone.
type chart struct {
	ID           string
	Title, Desc  string
	Pictures     []picture
	Legend       []legend
	XName, YName string
}

type picture struct {
	ID, Class                 string
	W, H                      float64
	Left, Top, Right, Bottom  float64 // edges of the plot
	XTicks, YTicks            []tick
	Lines                     []line
	Bands                     []band
	Marks                     []mark
	XNameAt, YNameAt, TickEnd float64
}

type tick struct {
	At    float64
	Label string // "" for a line alone
}

type line struct{ Class, Path string }

type band struct{ Y, Height float64 }

type mark struct {
	Class        string
	Path         string
	X, Lo, Hi    float64 // of the bar; none where Lo and Hi are equal
	Title        string
	Interval     bool
	LoCap, HiCap float64 // ends of the bar's caps
}

type legend struct{ Class, Path, Text string }

// A point is one workload in a chart. All values are above 0; those that are not known are 0.
type point struct {
	axes          map[string]int
	value, lo, hi float64
	title         string
}

// A series is what has one shape.
type series struct {
	name   string
	class  string
	shape  int
	hollow bool
	points []point
}

// A guide is a line through points, without marks.
type guide struct {
	name   string
	class  string
	points []point
}

// shapes are drawn around 0, 0 with radius r.
var shapes = []func(x, y, r float64) string{
	func(x, y, r float64) string {
		return fmt.Sprintf("M%.1f %.1fa%.1f %.1f 0 1 0 %.1f 0a%.1f %.1f 0 1 0 %.1f 0z", x-r, y, r, r, 2*r, r, r, -2*r)
	},
	func(x, y, r float64) string { r *= 0.9; return polygon(x-r, y-r, x+r, y-r, x+r, y+r, x-r, y+r) },
	func(x, y, r float64) string { r *= 1.25; return polygon(x, y-r, x+r, y, x, y+r, x-r, y) },
	func(x, y, r float64) string { r *= 1.2; return polygon(x, y-r, x+r, y+0.8*r, x-r, y+0.8*r) },
	func(x, y, r float64) string { r *= 1.2; return polygon(x, y+r, x-r, y-0.8*r, x+r, y-0.8*r) },
	func(x, y, r float64) string {
		a := 0.4 * r
		return polygon(x-a, y-r, x+a, y-r, x+a, y-a, x+r, y-a, x+r, y+a, x+a, y+a, x+a, y+r, x-a, y+r, x-a, y+a, x-r, y+a,
			x-r, y-a, x-a, y-a)
	},
}

const (
	circle = iota
	square
	diamond
	triangleUp
	triangleDown
)

func polygon(at ...float64) string {
	var b strings.Builder
	for i := 0; i < len(at); i += 2 {
		b.WriteByte("ML"[min(i, 1)])
		fmt.Fprintf(&b, "%.1f %.1f", at[i], at[i+1])
	}
	return b.String() + "z"
}

func polyline(at []float64) string { return strings.TrimSuffix(polygon(at...), "z") }

// spreadAxis is the axis that charts run along: batch_size where workloads differ in it, else the one with the most
// values; "" where they differ in none, or an axis has values that a logarithmic scale cannot show.
func spreadAxis(workloads []Workload) string {
	values := map[string]map[int]bool{}
	for _, w := range workloads {
		for name, n := range w.Axes {
			if values[name] == nil {
				values[name] = map[int]bool{}
			}
			values[name][n] = true
		}
	}
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

// latency is the chart of the run's latencies; nil where nothing was timed.
func (r *Run) latency(id string) *chart {
	axis := spreadAxis(r.Workloads)
	places := []string{""}
	if r.Split() {
		places = nil
		for _, p := range r.Places {
			places = append(places, p.Name)
		}
	}
	var all []series
	var guides []guide
	baseline := ""
	if b := r.Run.Run.Baseline; b != nil {
		baseline = clean(b.Name, 24)
	}
	var empties []point
	for i, place := range places {
		suffix := ""
		if r.Split() {
			suffix = " on " + clean(place, 40)
		}
		own := series{name: "solution" + suffix, class: "solution", shape: i % len(shapes)}
		theirs := series{name: "baseline " + baseline + suffix, class: "baseline", shape: i % len(shapes), hollow: true}
		if !r.Split() {
			theirs.shape = square
		}
		copied := guide{name: "plain copy of as many bytes" + suffix, class: "copy"}
		for j := range r.Workloads {
			w := &r.Workloads[j]
			s := w.Samples
			if s == nil || r.Split() && w.Place != place || s.MedianNS <= 0 {
				continue
			}
			own.points = append(own.points, timed(w, "", s.MedianNS, s.Interval))
			if s.Baseline != nil && s.Baseline.MedianNS > 0 {
				theirs.points = append(theirs.points, timed(w, baseline+": ", s.Baseline.MedianNS, s.Baseline.Interval))
			}
			if s.CopyNS > 0 {
				copied.points = append(copied.points, point{axes: w.Axes, value: s.CopyNS})
			}
			if s.EmptyNS > 0 && !r.Split() {
				empties = append(empties, point{axes: w.Axes, value: s.EmptyNS})
			}
		}
		for _, s := range []series{theirs, own} {
			if len(s.points) > 0 {
				all = append(all, s)
			}
		}
		if len(copied.points) > 0 {
			guides = append(guides, copied)
		}
	}
	if len(all) == 0 {
		return nil
	}
	if len(empties) > 0 {
		guides = append(guides, guide{name: "empty kernel, " + ui.Micros(r.empty()), class: "empty", points: empties})
	}
	_, l2 := r.conditions()
	lo, hi := span(all, func(p point) float64 { return p.value })
	desc := fmt.Sprintf(
		"%d workloads, from %s to %s, %s L2. Bars are the 95 %% intervals of the medians. The table of workloads has "+
			"every figure.", len(all[len(all)-1].points), ui.Micros(lo), ui.Micros(hi), l2)
	if r.Split() {
		desc = fmt.Sprintf(
			"Figures of %d places, each with a shape of its own, from %s to %s, %s L2. The table of workloads has every figure.",
			len(r.Places), ui.Micros(lo), ui.Micros(hi), l2)
	}
	c := &chart{ID: id, Title: "Latency by " + axisName(axis), Desc: desc, XName: axisName(axis),
		YName: "µs, " + l2 + " L2"}
	c.draw(axis, all, guides, func(ns float64) string { return trim(ns / 1e3) }, 0)
	return c
}

func timed(w *Workload, of string, ns float64, i event.Interval) point {
	return point{w.Axes, ns, i.LoNS, i.HiNS, fmt.Sprintf("%s%s, workload %s: %s, median of all timings from %s to %s", of,
		axesText(w.Axes),
		plain.Short(w.UUID), ui.Micros(ns), ui.Micros(i.LoNS), ui.Micros(i.HiNS))}
}

func axisName(axis string) string {
	if axis == "" {
		return "workload, in order"
	}
	return clean(axis, 40)
}

// speedups is the chart of the run's speed-ups over its baseline; nil where there are less than two.
func (r *Run) speedups(id string) *chart {
	b := r.Run.Run.Baseline
	if b == nil || r.Emulated {
		return nil
	}
	axis := spreadAxis(r.Workloads)
	s := series{name: "speed-up over " + clean(b.Name, 24), class: "solution", shape: circle}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		if w.Evaluated != nil && w.Evaluated.Speedup != nil && *w.Evaluated.Speedup > 0 {
			x := *w.Evaluated.Speedup
			s.points = append(s.points, point{axes: w.Axes, value: x, title: fmt.Sprintf("%s, workload %s: %s", axesText(w.Axes),
				plain.Short(w.UUID), ui.Times(&x))})
		}
	}
	if len(s.points) < 2 {
		return nil
	}
	lo, hi := span([]series{s}, func(p point) float64 { return p.value })
	c := &chart{ID: id, Title: fmt.Sprintf("Speed-up over %s by %s", clean(b.Name, 40), axisName(axis)),
		XName: axisName(axis), YName: "times as fast",
		Desc: fmt.Sprintf("%s, from %s to %s; above 1 the solution is faster.", plain.Count(len(s.points), "workload"),
			ui.Times(&lo), ui.Times(&hi))}
	c.draw(axis, []series{s}, nil, func(v float64) string { return trim(v) + "x" }, 1)
	return c
}

// chart is that of the ratios; nil where there are none.
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
				row.Verdict)})
		n++
	}
	if n == 0 {
		return nil
	}
	by = slices.DeleteFunc(by, func(s series) bool { return len(s.points) == 0 })
	lo, hi := span(by, func(p point) float64 { return p.value })
	pic := &chart{ID: id, Title: "B's time over A's by " + axisName(axis), XName: axisName(axis), YName: "B/A",
		Desc: fmt.Sprintf(
			"%s, from %.3f to %.3f, with 95 %% intervals; below 1 B is faster. The shaded band is the threshold of %.3g %%.",
			plain.Count(n, "workload"), lo, hi, 100*c.Result.Threshold)}
	pic.draw(axis, by, nil, trim, 1, 1/(1+c.Result.Threshold), 1+c.Result.Threshold)
	return pic
}

// drawable leaves out what no run can have measured.
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

// span gives the least and the greatest of the points' values that are above 0.
func span(all []series, of func(point) float64) (lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, s := range all {
		for _, p := range s.points {
			if v := of(p); v > 0 {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	return lo, hi
}

// draw makes the pictures. Both scales are logarithmic; unit above 0 is a value to draw a line at, limits are the edges
// of a band around it. Without an axis points stand in their order.
func (c *chart) draw(axis string, all []series, guides []guide, label func(float64) string, unit float64,
	limits ...float64) {
	for i := range all {
		all[i].points = drawable(all[i].points)
	}
	for i := range guides {
		guides[i].points = drawable(guides[i].points)
	}
	all = slices.DeleteFunc(all, func(s series) bool { return len(s.points) == 0 })
	guides = slices.DeleteFunc(guides, func(g guide) bool { return len(g.points) == 0 })
	if len(all) == 0 {
		return
	}
	lo, hi := span(all, func(p point) float64 { return p.value })
	for _, of := range []func(point) float64{func(p point) float64 { return p.lo },
		func(p point) float64 { return p.hi }} {
		if l, h := span(all, of); h > 0 {
			lo, hi = min(lo, l), max(hi, h)
		}
	}
	for _, g := range guides {
		l, h := span([]series{{points: g.points}}, func(p point) float64 { return p.value })
		lo, hi = min(lo, l), max(hi, h)
	}
	for _, v := range append(slices.Clone(limits), unit) {
		if v > 0 {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	values := scaleTicks(lo, hi)
	lo, hi = values[0], values[len(values)-1]

	var at []int // values of the axis, ascending
	most := 0
	for _, s := range all {
		most = max(most, len(s.points))
		for _, p := range s.points {
			at = append(at, p.axes[axis])
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)

	for _, size := range []struct {
		class            string
		w, h, gap, inset float64
	}{{"wide", 760, 380, 34, 28}, {"narrow", 320, 300, 30, 16}} {
		p := picture{ID: c.ID + "-" + size.class, Class: size.class, W: size.w, H: size.h, Left: 46, Top: 26,
			Right: size.w - 12, Bottom: size.h - 42, TickEnd: 40}
		p.XNameAt, p.YNameAt = (p.Left+p.Right)/2, 14
		y := func(v float64) float64 {
			if !(v > 0) {
				return p.Bottom
			}
			share := math.Log(v/lo) / math.Log(hi/lo)
			return p.Bottom - math.Max(-0.02, math.Min(1.02, share))*(p.Bottom-p.Top)
		}
		inner := p.Right - p.Left - 2*size.inset
		x := func(v, i int) float64 {
			switch {
			case axis == "" && most < 2, axis != "" && len(at) < 2:
				return (p.Left + p.Right) / 2
			case axis == "":
				return p.Left + size.inset + inner*float64(i)/float64(most-1)
			}
			return p.Left + size.inset + inner*math.Log(float64(max(v, 1))/float64(max(at[0], 1)))/math.Log(
				float64(at[len(at)-1])/float64(max(at[0], 1)))
		}
		last := math.Inf(-1)
		for i, v := range values {
			if t := y(v); i == 0 || math.Abs(t-last) >= 22 {
				p.YTicks = append(p.YTicks, tick{t, label(v)})
				last = t
			}
		}
		room := 2*size.inset - 12 // for workloads of one value, side by side
		for i := 1; i < len(at); i++ {
			room = min(room, 0.6*(x(at[i], 0)-x(at[i-1], 0)))
		}
		if axis != "" {
			end := x(at[len(at)-1], 0)
			last = math.Inf(-1)
			for i, v := range at {
				t := x(v, 0)
				if t-last >= size.gap && (i == len(at)-1 || end-t >= size.gap) {
					p.XTicks = append(p.XTicks, tick{t, fmt.Sprint(v)})
					last = t
				} else {
					p.XTicks = append(p.XTicks, tick{At: t})
				}
			}
		}
		if len(limits) == 2 {
			p.Bands = []band{{y(limits[1]), y(limits[0]) - y(limits[1])}}
		}
		if unit > 0 {
			p.Lines = append(p.Lines, line{"unit", polyline([]float64{p.Left, y(unit), p.Right, y(unit)})})
		}
		for _, g := range guides {
			p.Lines = append(p.Lines, line{g.class, polyline(guidePath(g, axis, x, y, p.Left, p.Right))})
		}
		for _, s := range all {
			group, seen := map[int]int{}, map[int]int{}
			for _, pt := range s.points {
				group[pt.axes[axis]]++
			}
			for i, pt := range s.points {
				v := pt.axes[axis]
				px := x(v, i)
				if n := group[v]; axis != "" && n > 1 {
					px += min(room, 5*float64(n-1)) * (float64(seen[v])/float64(n-1) - 0.5)
					seen[v]++
				}
				m := mark{Class: s.class, Path: shapes[s.shape](px, y(pt.value), 4), X: px, Title: pt.title}
				if s.hollow {
					m.Class += " hollow"
				}
				if pt.lo > 0 && pt.hi > pt.lo {
					m.Interval, m.Lo, m.Hi, m.LoCap, m.HiCap = true, y(pt.lo), y(pt.hi), px-3, px+3
				}
				p.Marks = append(p.Marks, m)
			}
		}
		c.Pictures = append(c.Pictures, p)
	}
	for _, s := range all {
		class := s.class
		if s.hollow {
			class += " hollow"
		}
		c.Legend = append(c.Legend, legend{class, shapes[s.shape](12, 8, 4.5), s.name})
	}
	for _, g := range guides {
		c.Legend = append(c.Legend, legend{"line " + g.class, "M1 8L23 8", g.name})
	}
	if unit > 0 && len(all) == 1 && len(limits) == 0 {
		c.Legend = append(c.Legend, legend{"line unit", "M1 8L23 8", "as fast as the baseline"})
	}
}

// guidePath goes through the means of the points at each place, from edge to edge where there is only one.
func guidePath(g guide, axis string, x func(v, i int) float64, y func(float64) float64, left,
	right float64) (path []float64) {
	if axis == "" {
		for i, p := range g.points {
			path = append(path, x(0, i), y(p.value))
		}
	} else {
		by := map[int][]float64{}
		var order []int
		for _, p := range g.points {
			v := p.axes[axis]
			if by[v] == nil {
				order = append(order, v)
			}
			by[v] = append(by[v], p.value)
		}
		slices.Sort(order)
		for _, v := range order {
			for _, value := range slices.Compact(slices.Sorted(slices.Values(by[v]))) {
				path = append(path, x(v, 0), y(value))
			}
		}
	}
	if len(path) == 2 {
		path = []float64{left, path[1], right, path[1]}
	}
	return path
}

// scaleTicks gives values for a logarithmic scale that holds lo and hi: 1, 2 and 5 in each decade, or even steps where
// that would be few. The first is at or below lo, the last at or above hi.
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
	decade := math.Pow(10, math.Floor(math.Log10(lo)))
	for ; ; decade *= 10 {
		for _, m := range []float64{1, 2, 5} {
			v := m * decade
			if v > lo*(1+1e-9) && len(list) == 0 {
				list = append(list, before(v))
			}
			if len(list) > 0 {
				list = append(list, v)
			}
			if v >= hi*(1-1e-9) && len(list) > 1 {
				return list
			}
		}
	}
}

// before is the value of the series 1, 2, 5, 10 below v, which is one of it.
func before(v float64) float64 {
	m := math.Round(v / math.Pow(10, math.Floor(math.Log10(v)*(1+1e-12)+1e-12)))
	switch m {
	case 1, 2:
		return v / 2
	}
	return v / 2.5
}

// niceStep is 1, 2, 2.5 or 5 times a power of ten, at or above v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*p >= v*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// trim is v with at most three significant digits and no zeros at the end.
func trim(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	s := fmt.Sprintf("%.3f", v)
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

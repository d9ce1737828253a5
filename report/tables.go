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

// A table is a finished table, for every output format.
type table struct {
	ID, Caption string
	HeadingID   string // of a heading that distinguishes it from tables with the same caption, or ""
	Note        string // below the caption
	Head        []column
	Rows        [][]cell // the first cell of a row names it
}

// Tall reports whether the table scrolls below its headings.
func (t table) Tall() bool { return len(t.Rows) > 30 }

type column struct {
	Text  string
	Title string // explains the column
	Right bool

	optional bool // omitted if it is empty in all rows
	detail   bool // the Markdown report of a timed run lacks it
	front    int  // order of the columns in front of the axes on a page; 0: behind them
}

type cell struct {
	Text  string
	Title string // the value with all its digits
	Class string // "good", "bad", "doubt", "code", "code long", "names", "source", "hot" or ""
	Right bool
	ID    string // of the element, for links

	Workload string // the row's workload
}

// A field is a column of a table with one row for each T.
type field[T any] struct {
	column
	cell func(T) cell
}

// byWorkload returns the columns that name a workload and its axes.
func byWorkload[T any](axes []string, identify func(T) (uuid string, axes map[string]int)) []field[T] {
	return append([]field[T]{{column{Text: "Workload"}, func(v T) cell {
		uuid, _ := identify(v)
		return cell{Text: cmp.Or(plain.Short(uuid), "?"), Title: clean(uuid, 120), Class: "code",
			Workload: clean(uuid, 120)}
	}}}, byAxes(axes, func(v T) map[string]int { _, axes := identify(v); return axes })...)
}

func byAxes[T any](names []string, axes func(T) map[string]int) (list []field[T]) {
	for _, name := range names {
		list = append(list, field[T]{column{Text: clean(name, 24), Title: clean(name, 200), Right: true},
			func(v T) cell {
				if n, ok := axes(v)[name]; ok {
					return cell{Text: fmt.Sprint(n)}
				}
				return cell{}
			}})
	}
	return list
}

// fill sets the columns of the table, and a row for each of list. For a page it moves columns to the front, so that a
// narrow screen still shows them.
func fill[T any](t *table, page bool, fields []field[T], list []T) {
	if page {
		slices.SortStableFunc(fields[1:], func(a, b field[T]) int { return cmp.Compare(uint(a.front-1), uint(b.front-1)) })
	}
	t.Rows = make([][]cell, len(list))
	for _, f := range fields {
		cells, empty := make([]cell, len(list)), true
		for i, v := range list {
			c := f.cell(v)
			empty = empty && c.Text == ""
			c.Text, c.Right = cmp.Or(c.Text, "-"), f.Right
			if c.Right {
				c.Text = plain.Cut(c.Text, 32)
			}
			cells[i] = c
		}
		if f.optional && empty {
			continue
		}
		t.Head = append(t.Head, f.column)
		for i, c := range cells {
			t.Rows[i] = append(t.Rows[i], c)
		}
	}
}

func valueCell(v ui.Value) cell { return cell{Text: v.Text, Title: v.Exact} }

func (r *Subject) verdictCell(w runs.Row) cell {
	c := cell{Text: clean(r.verdict(&w), 60)}
	switch {
	case w.Passed():
		c.Class = "good"
	case w.Evaluated != nil, w.Unjudged != nil:
		c.Class = "bad"
	}
	return c
}

// remarks returns short marks for findings and doubtful timings, which later sections explain.
func remarks(w runs.Row) cell {
	var list []string
	for _, f := range w.Findings {
		list = append(list, "finding: "+clean(f.Check, 40))
	}
	if w.Samples != nil && (len(w.Samples.Disturbed) > 0 || len(w.Samples.Warnings) > 0) {
		list = append(list, "* unreliable")
	}
	if len(list) == 0 {
		return cell{}
	}
	return cell{Text: strings.Join(slices.Compact(list), ", "), Class: "doubt"}
}

// workloads returns the table of all verdicts and figures, for a page or for Markdown.
func (r *Subject) workloads(id string, page bool) table {
	t := table{ID: id, Caption: "Workloads, verdicts and figures"}
	if r.Emulated {
		t.Caption = "Workloads, verdicts and errors"
	}
	tol := r.Run.Run.Tolerance
	t.Note = fmt.Sprintf("An element is correct within %g absolute or %g relative; %g %% of the elements must be correct.",
		tol.Atol, tol.Rtol, 100*tol.MatchedRatio)
	if latency := r.Latency(); latency != "" {
		t.Note += " Median: " + latency + "."
	}
	fields := byWorkload(r.Axes, rowAxes)
	if r.Split() {
		fields = append(fields, placeField)
	}
	fields = append(fields, field[runs.Row]{column{Text: "Verdict", front: 1}, r.verdictCell})
	for _, f := range ui.Figures(r.Run.Run, r.Timed) {
		if f.Title == "" {
			continue
		}
		c := column{Text: f.Heading, Title: f.Title, Right: true, optional: !f.Kept, detail: f.Detail}
		if f.Timed || r.Emulated {
			c.front = f.Front
		}
		fields = append(fields, field[runs.Row]{c, func(w runs.Row) cell {
			if f.Timed && w.Samples == nil {
				return cell{}
			}
			return valueCell(f.Value(w.Evaluated, w.Samples))
		}})
	}
	fill(&t, page, append(fields, field[runs.Row]{column{Text: "Remarks", optional: true}, remarks}), r.Workloads)
	return t
}

func rowAxes(w runs.Row) (uuid string, axes map[string]int) { return w.UUID, w.Axes }

var placeField = field[runs.Row]{column{Text: "Place"},
	func(w runs.Row) cell { return cell{Text: clean(w.Place, 60)} }}

// groups returns a table with one row for each combination of the axes that vary. It has no rows if the grouping would
// save less than half of the rows of the table of workloads, or if the run used several places.
func (r *Subject) groups(id string) table {
	values := axisValues(r.Workloads)
	axes := slices.DeleteFunc(slices.Clone(r.Axes), func(name string) bool { return len(values[name]) < 2 })
	t := table{ID: id, Caption: "By axes"}
	groups := runs.Groups(r.Workloads)
	if len(axes) == 0 || 2*len(groups) > len(r.Workloads) || r.Split() {
		return t
	}
	fields := append(byAxes(axes, func(g runs.Group) map[string]int { return g.Axes }),
		field[runs.Group]{column{Text: "Passed"}, func(g runs.Group) cell {
			c := cell{Text: fmt.Sprintf("%d of %d", g.Passed, g.Workloads), Class: "good"}
			if g.Passed < g.Workloads {
				c.Class = "bad"
			}
			return c
		}})
	if r.Timed {
		t.Note = "Mean, minimum and maximum of the workloads' official latencies."
		fields = append(fields, []field[runs.Group]{
			{column{Text: "Latency", Title: "mean of the official latencies", Right: true, optional: true},
				func(g runs.Group) cell { return valueCell(ui.Nanos(g.Mean)) }},
			{column{Text: "Minimum to maximum", Right: true, optional: true}, func(g runs.Group) cell {
				if g.Timed == 0 {
					return cell{}
				}
				return cell{Text: strings.TrimSuffix(ui.Micros(g.Low), " µs") + " to " + ui.Micros(g.High)}
			}},
			{column{Text: "Speed-up", Title: "mean over the baseline", Right: true, optional: true},
				func(g runs.Group) cell { return valueCell(ui.Speedup(g.Speedup)) }},
			{column{Text: "Copy", Title: "mean share of the bandwidth of the roofline copy, a plain copy of as many bytes",
				Right: true, optional: true},
				func(g runs.Group) cell { return valueCell(ui.Share(g.CopyShare)) }},
		}...)
	}
	if r.Emulated {
		t.Note = "Largest errors of the workloads."
		fields = append(fields, []field[runs.Group]{
			{column{Text: "Max abs", Title: "largest absolute error", Right: true, optional: true},
				func(g runs.Group) cell { abs, _ := largest(g.Rows); return valueCell(ui.Error(abs)) }},
			{column{Text: "Max rel", Title: "largest relative error", Right: true, optional: true},
				func(g runs.Group) cell { _, rel := largest(g.Rows); return valueCell(ui.Error(rel)) }},
		}...)
	}
	fill(&t, false, fields, groups)
	return t
}

// trust describes the state of the GPU during the measurements: one sentence for most workloads, and a table of those
// that were measured in another state or whose figures are in doubt.
func (r *Subject) trust(id string) (sentence string, t table) {
	t = table{ID: id, Caption: "Workloads with another GPU state",
		Note: "Reported by NVML; ranges cover all readings during the measurement."}
	fields := byWorkload(r.Axes, rowAxes)
	if r.Split() {
		fields = append(fields, placeField, field[runs.Row]{column{Text: "GPU"}, func(w runs.Row) cell {
			d := r.device(&w)
			return cell{Text: clean(d.Name, 40), Title: clean(d.UUID, 60)}
		}})
	}
	stamped := func(format func(*event.Stamp) cell) func(runs.Row) cell {
		return func(w runs.Row) cell {
			if w.Samples.Stamp == nil {
				return cell{}
			}
			return format(w.Samples.Stamp)
		}
	}
	fields = append(fields, []field[runs.Row]{
		{column{Text: "SM clock", Right: true}, stamped(clockCell)},
		{column{Text: "Memory clock", Right: true}, stamped(ranged("MHz", memoryClock))},
		{column{Text: "Temperature", Right: true}, stamped(ranged("°C", temperature))},
		{column{Text: "Power", Right: true}, stamped(ranged("W", func(r event.Reading) float64 { return r.PowerW }))},
		{column{Text: "Throttled by"}, stamped(throttleCell)},
		{column{Text: "Other processes"}, stamped(processesCell)},
		{column{Text: "ECC errors", Title: "uncorrected, since the driver was loaded", Right: true}, stamped(eccCell)},
		{column{Text: "Measured", Title: "number of attempts until nothing disturbed it", Right: true},
			func(w runs.Row) cell { return cell{Text: times(max(1, w.Samples.Measured))} }},
		{column{Text: "In doubt"}, doubtCell},
	}...)
	timed := slices.DeleteFunc(slices.Clone(r.Workloads), func(w runs.Row) bool { return w.Samples == nil })
	fill(&t, false, fields, timed)
	usual := r.usualClock()
	var steady []*event.Stamp
	var others [][]cell
	for i, w := range timed {
		s := w.Samples
		if s.Measured > 1 || s.Stamp != nil && !r.Split() && clockCell(s.Stamp).Text != usual ||
			slices.ContainsFunc(t.Rows[i], func(c cell) bool { return c.Class == "doubt" }) {
			others = append(others, t.Rows[i])
		} else {
			steady = append(steady, s.Stamp)
		}
	}
	t.Rows = others
	if len(steady) == 0 {
		return "", t
	}
	count, rest := plain.Count(len(timed), "workload"), ""
	if len(others) > 0 {
		count, rest = fmt.Sprintf("%d of %s", len(steady), count), "; the others are below"
	}
	return fmt.Sprintf("%s timed%s, without throttling, other processes or unreliable figures%s.", count, state(steady),
		rest), t
}

// usualClock returns the most frequent SM clock, as text. On a tie the clock that reached the count first wins.
func (r *Subject) usualClock() (usual string) {
	counts := map[string]int{}
	for _, w := range r.Workloads {
		if w.Samples != nil && w.Samples.Stamp != nil {
			text := clockCell(w.Samples.Stamp).Text
			if counts[text]++; counts[text] > counts[usual] {
				usual = text
			}
		}
	}
	return usual
}

// state describes the clocks and the temperature: " at 1980 MHz, memory 3201 MHz, 33 to 36 °C". It returns "" if a
// stamp is missing or has no readings.
func state(stamps []*event.Stamp) string {
	var parts []string
	for _, figure := range []struct {
		name, unit string
		value      func(event.Reading) float64
	}{{"", "MHz", smClock}, {"memory ", "MHz", memoryClock}, {"", "°C", temperature}} {
		lo, hi := math.Inf(1), 0.0
		for _, s := range stamps {
			if s == nil {
				return ""
			}
			a, b := readings(s)
			lo, hi = min(lo, figure.value(a)), max(hi, figure.value(b))
		}
		if text := between(lo, hi, 0, figure.unit).Text; text != "" {
			parts = append(parts, figure.name+text)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " at " + strings.Join(parts, ", ")
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func smClock(r event.Reading) float64     { return float64(r.SMClockMHz) }
func memoryClock(r event.Reading) float64 { return float64(r.MemoryClockMHz) }
func temperature(r event.Reading) float64 { return float64(r.TemperatureC) }

// ranged returns a function that formats the range of a figure during the measurement.
func ranged(unit string, value func(event.Reading) float64) func(*event.Stamp) cell {
	return func(s *event.Stamp) cell {
		lo, hi := readings(s)
		return between(value(lo), value(hi), 0, unit)
	}
}

// readings returns the minimum and maximum of each GPU figure during the measurement.
func readings(s *event.Stamp) (lo, hi event.Reading) {
	if s.During.N == 0 {
		return s.Before, s.After
	}
	return s.During.Min, s.During.Max
}

func clockCell(s *event.Stamp) cell {
	c := ranged("MHz", smClock)(s)
	c.Title = fmt.Sprintf("before %d MHz, %d °C, %.0f W; after %d MHz, %d °C, %.0f W; %d readings between",
		s.Before.SMClockMHz, s.Before.TemperatureC, s.Before.PowerW,
		s.After.SMClockMHz, s.After.TemperatureC, s.After.PowerW, s.During.N)
	if s.ClocksLocked {
		c.Text += " locked"
	}
	return c
}

func throttleCell(s *event.Stamp) cell {
	if len(s.ThrottleReasons) == 0 {
		return cell{Text: "none"}
	}
	return cell{Text: clean(strings.Join(s.ThrottleReasons, ", "), 200), Class: "doubt"}
}

func processesCell(s *event.Stamp) cell {
	if len(s.OtherProcesses) == 0 {
		return cell{Text: "none"}
	}
	var list []string
	for i, p := range s.OtherProcesses {
		if i == 5 {
			list = append(list, fmt.Sprintf("%d more", len(s.OtherProcesses)-i))
			break
		}
		busy := ""
		if p.SMPercent >= 0 {
			busy = fmt.Sprintf(", %d %% SM", p.SMPercent)
		}
		list = append(list, fmt.Sprintf("%s (pid %d, %d MB%s)", cmp.Or(clean(p.Name, 60), "unnamed"), p.PID,
			p.MemoryBytes/1e6, busy))
	}
	return cell{Text: strings.Join(list, "; "), Class: "doubt"}
}

func eccCell(s *event.Stamp) cell {
	switch {
	case s.ECCErrors > 0:
		return cell{Text: fmt.Sprint(s.ECCErrors), Class: "doubt"}
	case s.ECC:
		return cell{Text: "0"}
	}
	return cell{Text: "off"}
}

// doubtCell lists the reasons to doubt the timings of a workload.
func doubtCell(w runs.Row) cell {
	s := w.Samples
	doubts := slices.Concat(s.Disturbed, s.Warnings)
	if s.Truncated {
		doubts = append(doubts, "a time limit ended the measurement")
	}
	if s.TimerNote != "" {
		doubts = append(doubts, s.TimerNote)
	}
	if s.Stamp == nil {
		doubts = append(doubts, "GPU state not recorded")
	} else if s.Stamp.Note != "" {
		doubts = append(doubts, s.Stamp.Note)
	}
	if len(doubts) == 0 {
		return cell{Text: "none"}
	}
	for i := range doubts {
		doubts[i] = clean(doubts[i], 200)
	}
	return cell{Text: "* " + strings.Join(doubts, "; "), Class: "doubt"}
}

// between formats a range with the given number of digits and a unit. The cell is empty if both are 0: NVML then has
// no reading.
func between(lo, hi float64, digits int, unit string) cell {
	a, b := fmt.Sprintf("%.*f", digits, lo), fmt.Sprintf("%.*f", digits, hi)
	switch {
	case lo == 0 && hi == 0:
		return cell{}
	case a != b:
		a += " to " + b
	}
	return cell{Text: strings.TrimSuffix(a+" "+unit, " ")}
}

// A step is a kernel or copy at a position of a call.
type step struct {
	event.Activity
	number, steps int // position, from 1, and number of steps of the call
}

// A launch is a step of the calls of some workloads.
type launch struct {
	step
	workloads int
	axes      []string // of the workloads, in the order of the run
	times     []float64
}

// kernels lists the launches of one call, each distinct launch once.
func (r *Subject) kernels(id string) table {
	t := table{ID: id, Caption: "GPU work of one call",
		Note: "Recorded by CUPTI. Registers and local memory per thread, shared memory per block."}
	launches := map[step]*launch{}
	var order []*launch
	for _, w := range r.Workloads {
		if w.Samples == nil {
			continue
		}
		for i, k := range w.Samples.Kernels {
			ns := k.MedianNS
			k.MedianNS = 0
			step := step{k, i + 1, len(w.Samples.Kernels)}
			l := launches[step]
			if l == nil {
				l = &launch{step: step}
				launches[step] = l
				order = append(order, l)
			}
			l.times = append(l.times, ns)
			if axes := axesText(w.Axes); !slices.Contains(l.axes, axes) {
				l.axes = append(l.axes, axes)
			}
			l.workloads++
		}
	}
	kernel := func(format func(*launch) string) func(*launch) cell { // copies and fills have no such figure
		return func(l *launch) cell {
			if l.Kind != "kernel" {
				return cell{}
			}
			return cell{Text: format(l)}
		}
	}
	size := func(s [3]int) string { return fmt.Sprintf("%d × %d × %d", s[0], s[1], s[2]) }
	fill(&t, false, []field[*launch]{
		{column{Text: "Kernel"}, func(l *launch) cell { return kernelCell(l.Activity) }},
		{column{Text: "Step", Title: "position in the call"},
			func(l *launch) cell { return cell{Text: fmt.Sprintf("%d of %d", l.number, l.steps)} }},
		{column{Text: "Grid", Right: true}, kernel(func(l *launch) string { return size(l.Grid) })},
		{column{Text: "Block", Right: true}, kernel(func(l *launch) string { return size(l.Block) })},
		{column{Text: "Registers", Right: true}, kernel(func(l *launch) string { return fmt.Sprint(l.Registers) })},
		{column{Text: "Static shared", Right: true},
			kernel(func(l *launch) string { return fmt.Sprintf("%d B", l.StaticSharedBytes) })},
		{column{Text: "Dynamic shared", Right: true},
			kernel(func(l *launch) string { return fmt.Sprintf("%d B", l.DynamicSharedBytes) })},
		{column{Text: "Local", Title: "spills and arrays, per thread", Right: true},
			kernel(func(l *launch) string { return fmt.Sprintf("%d B", l.LocalBytes) })},
		{column{Text: "Time, µs", Title: "of this step, from the smallest to the largest median of a workload",
			Right: true, optional: true},
			func(l *launch) cell { return between(slices.Min(l.times)/1e3, slices.Max(l.times)/1e3, 2, "") }},
		{column{Text: "Workloads"}, func(l *launch) cell {
			c := cell{Text: fmt.Sprintf("%d: ", l.workloads) + strings.Join(l.axes[:min(3, len(l.axes))], "; ")}
			if len(l.axes) > 3 {
				c.Text += "; ..."
			}
			if len(c.Text) > 30 {
				c.Class = "names"
			}
			return c
		}},
	}, order)
	return t
}

// kernelCell names an activity. Demangled names lose their parameters.
func kernelCell(a event.Activity) cell {
	if a.Kind != "kernel" {
		return cell{Text: clean(fmt.Sprintf("%s of %d bytes", a.Kind, a.Bytes), 80)}
	}
	name := clean(a.Name, 1000)
	short := name
	depth := 0
	for i, r := range name {
		switch r {
		case '<':
			depth++
		case '>':
			depth--
		case '(':
			if depth == 0 && i > 0 && !strings.HasPrefix(name[i:], "(anonymous namespace)") {
				short = name[:i]
			}
		}
		if len(short) < len(name) {
			break
		}
	}
	c := cell{Text: plain.Cut(strings.TrimPrefix(short, "void "), 160), Title: name, Class: "code"}
	if len(c.Text) > 30 {
		c.Class = "code long"
	}
	return c
}

func (r *Subject) facts(id string) table {
	t := table{ID: id, Caption: "Details of the run"}
	fill(&t, false, []field[[2]string]{{column{Text: "Fact"}, func(f [2]string) cell { return cell{Text: f[0]} }},
		{column{Text: "Value"}, func(f [2]string) cell { return cell{Text: clean(f[1], 600)} }}}, Facts(r.Run))
	return t
}

func (r *Report) overview() table {
	t := table{ID: "overview", Caption: "Solutions and devices"}
	fill(&t, false, []field[*Subject]{
		{column{Text: "Run"}, func(r *Subject) cell { return cell{Text: clean(r.ID, 60), Class: "code"} }},
		{column{Text: "Solution"}, func(r *Subject) cell { return cell{Text: r.Name()} }},
		{column{Text: "Passed", Right: true}, func(r *Subject) cell { return cell{Text: r.PassedText("")} }},
		{column{Text: "Mean latency", Title: "mean over the passed workloads; empty for several places",
			Right: true, optional: true},
			func(r *Subject) cell { return valueCell(ui.Nanos(r.Mean())) }},
		{column{Text: "Baseline", optional: true}, func(r *Subject) cell {
			if b := r.Run.Run.Baseline; b != nil {
				return cell{Text: clean(b.Name, 60)}
			}
			return cell{}
		}},
		{column{Text: "Mean speed-up", Title: "over the baseline; the contest's score if that is the reference",
			Right: true, optional: true},
			func(r *Subject) cell {
				if d := r.Done; d != nil && d.Score != nil {
					return cell{Text: fmt.Sprintf("%.3f", *d.Score), Title: ui.Exact(*d.Score)}
				}
				return cell{}
			}},
		{column{Text: "Findings", Right: true},
			func(r *Subject) cell { return cell{Text: fmt.Sprint(r.Totals().Findings)} }},
		{column{Text: "Device"}, func(r *Subject) cell { return cell{Text: r.where()} }},
	}, r.Runs)
	return t
}

// configurations lists the settings that differ between the runs. It has no rows if none differs.
func (r *Report) configurations() table {
	t := table{ID: "configurations", Caption: "Differences between runs"}
	fields := []field[string]{{column{Text: "Fact"}, func(name string) cell { return cell{Text: name} }}}
	var names []string
	facts := make([]map[string]string, len(r.Runs))
	for i, run := range r.Runs {
		fields = append(fields, field[string]{column{Text: plain.Cut(run.ID, 40), Title: clean(run.ID, 120)},
			func(name string) cell { return cell{Text: clean(facts[i][name], 200)} }})
		facts[i] = map[string]string{}
		for _, f := range Facts(run.Run) {
			if !slices.Contains(names, f[0]) {
				names = append(names, f[0])
			}
			facts[i][f[0]] = f[1]
		}
	}
	fill(&t, false, fields, slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains([]string{"run", "state", "started", "errors", "command"}, name) ||
			!slices.ContainsFunc(facts, func(f map[string]string) bool { return f[name] != facts[0][name] })
	}))
	return t
}

// table compares the runs workload by workload, for a page or for Markdown.
func (c *Comparison) table(id string, page bool) table {
	t := table{ID: id, Caption: "B against A, workload by workload"}
	if untimed(c.Result) {
		return t // the conclusion already says everything
	}
	if c.Result.Ratio != nil {
		t.Note = "B/A is a ratio of medians with its 95 % interval; above 1, B is slower. The verdict is on B."
	}
	axes := ui.AxisNames(c.Result.Rows, func(row compare.Row) map[string]int { return row.Axes })
	fields := append(byWorkload(axes,
		func(row compare.Row) (string, map[string]int) { return row.UUID, row.Axes }),
		[]field[compare.Row]{
			{column{Text: "A", Right: true}, func(row compare.Row) cell { return sideCell(row.A) }},
			{column{Text: "B", Right: true}, func(row compare.Row) cell { return sideCell(row.B) }},
			{column{Text: "B/A", Right: true, optional: true, front: 2},
				func(row compare.Row) cell { c, _ := ratioCells(row.Ratio); return c }},
			{column{Text: "95 % interval", Right: true, optional: true},
				func(row compare.Row) cell { _, c := ratioCells(row.Ratio); return c }},
			{column{Text: "p", Title: "of the Mann-Whitney test", Right: true, optional: true}, func(row compare.Row) cell {
				switch {
				case row.P == nil:
					return cell{}
				case *row.P < 0.0001:
					return cell{Text: "< 0.0001", Title: ui.Exact(*row.P)}
				}
				return cell{Text: fmt.Sprintf("%.4f", *row.P), Title: ui.Exact(*row.P)}
			}},
			{column{Text: "Verdict on B", front: 1}, func(row compare.Row) cell {
				c := cell{Text: clean(VerdictText(row.Verdict, row.Why), 200), Class: ratings[Rating(row.Verdict)]}
				if len(row.Warnings) > 0 {
					c.Text += " *"
					c.Title = clean(strings.Join(row.Warnings, "; "), 400)
				}
				return c
			}},
		}...)
	fill(&t, page, fields, c.Result.Rows)
	return t
}

func ratioCells(r *compare.Ratio) (ratio, interval cell) {
	if r != nil {
		ratio.Text, interval.Text = RatioText(r)
		ratio.Title, interval.Title = ui.Exact(r.Value), ui.Exact(r.Lo)+" to "+ui.Exact(r.Hi)
	}
	return ratio, interval
}

// Table returns the comparison as ui.Terminal.Table takes it: the alignment of the columns, then the heading and one
// row for each workload. It returns nothing if Conclusion already says everything.
func Table(res *compare.Result) (layout string, rows [][]string) {
	t := (&Comparison{Result: res}).table("", false)
	if len(t.Rows) == 0 {
		return "", nil
	}
	rows = make([][]string, 1+len(t.Rows))
	for i, c := range t.Head {
		align := "l"
		switch {
		case c.Text == "p":
			continue
		case c.Text == "A" || c.Text == "B" || c.Text == "B/A":
			align = "R"
		case c.Right:
			align = "r"
		}
		layout += align
		rows[0] = append(rows[0], plain.Cut(strings.ToUpper(c.Text), 13))
		for n, row := range t.Rows {
			rows[1+n] = append(rows[1+n], row[i].Text)
		}
	}
	return layout, rows
}

func sideCell(s compare.Side) cell {
	c := cell{Text: clean(SideText(s), 40)}
	if s.N > 0 {
		c.Title = fmt.Sprintf("%s, n %d; official %s", ui.ExactNS(s.MedianNS), s.N, ui.ExactNS(s.OfficialNS))
	}
	return c
}

// ratings are the classes of ratings.
var ratings = map[int]string{1: "good", -1: "bad"}

// Rating rates a verdict: good (1), bad (-1) or neutral (0).
func Rating(v compare.Verdict) int {
	switch v {
	case compare.Faster:
		return 1
	case compare.Slower:
		return -1
	}
	return 0
}

// Headline rates the whole result. It is not good if some workloads are slower.
func Headline(res *compare.Result) int {
	if res.Mixed && res.Verdict == compare.Faster {
		return 0
	}
	return Rating(res.Verdict)
}

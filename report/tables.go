package report

import (
	"cmp"
	"fmt"
	"maps"
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
	Of          string // id of a heading that distinguishes it from tables with the same caption, or ""
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
}

type cell struct {
	Text  string
	Title string // the value with all its digits
	Class string // "good", "bad", "doubt", "code", "code long", "names" or ""
	Right bool

	Workload string // the row's workload
}

func (t *table) add(cells ...cell) {
	for i := range cells {
		cells[i].Right = t.Head[i].Right
		cells[i].Text = cmp.Or(cells[i].Text, "-")
		if cells[i].Right {
			cells[i].Text = plain.Cut(cells[i].Text, 32)
		}
	}
	t.Rows = append(t.Rows, cells)
}

// drop removes the named columns if every row leaves them empty.
func (t *table) drop(names ...string) {
	for i := len(t.Head) - 1; i > 0; i-- {
		if slices.Contains(names, t.Head[i].Text) &&
			!slices.ContainsFunc(t.Rows, func(row []cell) bool { return row[i].Text != "-" }) {
			t.Head = slices.Delete(t.Head, i, i+1)
			for n := range t.Rows {
				t.Rows[n] = slices.Delete(t.Rows[n], i, i+1)
			}
		}
	}
}

// front moves a column to second place, so that a narrow screen still shows it.
func (t *table) front(name string) {
	at := slices.IndexFunc(t.Head, func(c column) bool { return c.Text == name })
	if at < 1 {
		return
	}
	head := t.Head[at]
	t.Head = slices.Insert(slices.Delete(t.Head, at, at+1), 1, head)
	for i, row := range t.Rows {
		c := row[at]
		t.Rows[i] = slices.Insert(slices.Delete(row, at, at+1), 1, c)
	}
}

// nanos formats a time. The cell is empty if ns is 0.
func nanos(ns float64) cell {
	if ns <= 0 {
		return cell{}
	}
	return cell{Text: ui.Micros(ns), Title: exactNS(ns)}
}

// timings formats a median with its interval.
func timings(t *event.Timings) cell {
	if t == nil {
		return cell{}
	}
	return cell{Text: ui.Micros(t.MedianNS) + " ± " + ui.Spread(t.Interval),
		Title: intervalTitle(t.MedianNS, t.N, t.Interval)}
}

func intervalTitle(ns float64, n int, i event.Interval) string {
	return fmt.Sprintf("%s, n %d, median of all timings from %s to %s", exactNS(ns), n, exactNS(i.LoNS), exactNS(i.HiNS))
}

func errorCell(f *float64) cell {
	c := cell{Text: ui.ErrorText(f)}
	if f != nil {
		c.Title = exact(*f)
	}
	return c
}

// matchedCell shows the share of correct elements if the evaluator of the definition records it.
func matchedCell(e *event.Evaluated) cell {
	if e == nil || e.Trace.Evaluation.Correctness == nil || e.Trace.Evaluation.Correctness.Extra == nil {
		return cell{}
	}
	var share float64
	switch v, _ := e.Trace.Evaluation.Correctness.Extra.Get("matched_ratio"); v := v.(type) {
	case float64:
		share = v
	case int64:
		share = float64(v)
	default:
		return cell{}
	}
	if !(share >= 0 && share <= 1) {
		return cell{}
	}
	hundredths := math.Floor(1e4*share + 1e-6) // rounded down, so that 100 % means all
	return cell{Text: fmt.Sprintf("%g %%", hundredths/100), Title: exact(share)}
}

func (r *Subject) verdictCell(w *runs.Row) cell {
	c := cell{Text: clean(r.verdict(w), 60)}
	switch {
	case w.Passed():
		c.Class = "good"
	case w.Evaluated != nil, w.Unjudged != nil:
		c.Class = "bad"
	}
	return c
}

func uuidCell(uuid string) cell {
	return cell{Text: cmp.Or(plain.Short(uuid), "?"), Title: clean(uuid, 120), Class: "code", Workload: clean(uuid, 120)}
}

func axisCells(axes []string, of map[string]int) (list []cell) {
	for _, name := range axes {
		c := cell{}
		if n, ok := of[name]; ok {
			c.Text = fmt.Sprint(n)
		}
		list = append(list, c)
	}
	return list
}

func axisColumns(axes []string) (list []column) {
	for _, name := range axes {
		list = append(list, column{Text: clean(name, 24), Title: clean(name, 200), Right: true})
	}
	return list
}

// remarks returns short marks for findings and doubtful timings, which later sections explain.
func remarks(w *runs.Row) cell {
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

// workloads returns the table of all verdicts and figures.
func (r *Subject) workloads(id string) table {
	t := table{ID: id, Caption: "Workloads, verdicts and figures"}
	if r.Emulated {
		t.Caption = "Workloads, verdicts and errors"
	}
	tol := r.Run.Run.Tolerance
	t.Note = fmt.Sprintf("An element is correct within %g absolute or %g relative; %g %% of the elements must be "+
		"correct.", tol.Atol,
		tol.Rtol, 100*tol.MatchedRatio)
	if latency := r.Latency(); latency != "" {
		t.Note += " Median: " + latency + "."
	}
	t.Head = append([]column{{Text: "Workload"}}, axisColumns(r.Axes)...)
	if r.Split() {
		t.Head = append(t.Head, column{Text: "Place"})
	}
	t.Head = append(t.Head, column{Text: "Verdict"}, column{Text: "Max abs", Title: "largest absolute error", Right: true},
		column{Text: "Max rel", Title: "largest relative error", Right: true},
		column{Text: "Matched", Title: "share of correct elements", Right: true})
	baseline := r.Run.Run.Baseline
	if r.Timed {
		t.Head = append(t.Head, column{Text: "Median", Title: "official latency", Right: true},
			column{Text: "±", Title: "half of the 95 % interval of the median", Right: true})
		if baseline != nil {
			t.Head = append(t.Head, column{Text: "Speed-up", Title: "latency of " + clean(baseline.Name,
				24) + " over the median", Right: true})
		}
		t.Head = append(t.Head, column{Text: "Copy", Title: "share of the bandwidth of the roofline copy, " +
			"a plain copy of as many bytes",
			Right: true}, column{Text: "Min", Title: "fastest call", Right: true},
			column{Text: "GB/s", Title: "bytes of all inputs and outputs over the median", Right: true},
			column{Text: "Peak", Title: "share of the bandwidth of the GPU's memory, by its specification", Right: true},
			column{Text: "Warm L2", Title: "with a warm L2; not the contest's figure", Right: true})
		if baseline != nil {
			t.Head = append(t.Head, column{Text: clean(baseline.Name, 24), Title: "latency " +
				"of the baseline, from alternating trials",
				Right: true})
		}
	}
	t.Head = append(t.Head, column{Text: "Remarks"})
	for i := range r.Workloads {
		w := &r.Workloads[i]
		cells := append([]cell{uuidCell(w.UUID)}, axisCells(r.Axes, w.Axes)...)
		if r.Split() {
			cells = append(cells, cell{Text: clean(w.Place, 60)})
		}
		abs, rel := w.Evaluated.Errors()
		cells = append(cells, r.verdictCell(w), errorCell(abs), errorCell(rel), matchedCell(w.Evaluated))
		if r.Timed {
			cells = append(cells, figures(w, baseline != nil)...)
		}
		t.add(append(cells, remarks(w))...)
	}
	t.drop("Max abs", "Max rel", "Matched", "Speed-up", "Copy", "GB/s", "Peak", "Warm L2", "Remarks")
	return t
}

// groups returns a table with one row for each combination of the axes that vary. It has no rows if the grouping would
// save less than half of the rows of the table of workloads, or if the run used several places.
func (r *Subject) groups(id string) table {
	values := axisValues(r.Workloads)
	axes := slices.DeleteFunc(slices.Clone(r.Axes), func(name string) bool { return len(values[name]) < 2 })
	t := table{ID: id, Caption: "By axes", Head: append(axisColumns(axes), column{Text: "Passed"})}
	groups := runs.Groups(r.Workloads)
	if len(axes) == 0 || 2*len(groups) > len(r.Workloads) || r.Split() {
		return t
	}
	if r.Timed {
		t.Note = "Mean, minimum and maximum of the workloads' official latencies."
		t.Head = append(t.Head, column{Text: "Latency", Title: "mean of the official latencies", Right: true},
			column{Text: "Minimum to maximum", Right: true},
			column{Text: "Speed-up", Title: "mean over the baseline", Right: true},
			column{Text: "Copy", Title: "mean share of the bandwidth of the roofline copy, a plain copy of as many bytes",
				Right: true})
	}
	if r.Emulated {
		t.Note = "Largest errors of the workloads."
		t.Head = append(t.Head, column{Text: "Max abs", Title: "largest absolute error", Right: true},
			column{Text: "Max rel", Title: "largest relative error", Right: true})
	}
	for _, g := range groups {
		passed := cell{Text: fmt.Sprintf("%d of %d", g.Passed, g.Workloads), Class: "good"}
		if g.Passed < g.Workloads {
			passed.Class = "bad"
		}
		cells := append(axisCells(axes, g.Axes), passed)
		if r.Timed {
			var spread, speedup, share cell
			if g.Timed > 0 {
				spread.Text = fmt.Sprintf("%s to %s", strings.TrimSuffix(ui.Micros(g.Low), " µs"), ui.Micros(g.High))
			}
			if g.Speedup != nil {
				speedup = cell{Text: ui.Times(g.Speedup), Title: exact(*g.Speedup)}
			}
			if g.CopyShare > 0 {
				share = cell{Text: ui.Percent(g.CopyShare), Title: exact(g.CopyShare)}
			}
			cells = append(cells, nanos(g.Mean), spread, speedup, share)
		}
		if r.Emulated {
			abs, rel := largest(g.Rows)
			cells = append(cells, errorCell(abs), errorCell(rel))
		}
		t.add(cells...)
	}
	t.drop("Latency", "Minimum to maximum", "Speed-up", "Copy", "Max abs", "Max rel")
	return t
}

// figures returns the cells from the median to the baseline.
func figures(w *runs.Row, baseline bool) []cell {
	var median, width, speedup, share, fastest, rate, peak, warm, theirs cell
	if s := w.Samples; s != nil {
		median, width = nanos(s.MedianNS), cell{Text: ui.Spread(s.Interval),
			Title: intervalTitle(s.MedianNS, s.N, s.Interval)}
		fastest, warm, theirs = nanos(float64(s.MinNS)), timings(s.Warm), timings(s.Baseline)
		if s.CopyShare > 0 {
			share = cell{Text: ui.Percent(s.CopyShare), Title: exact(s.CopyShare) + "; the copy takes " + exactNS(s.CopyNS)}
		}
		if s.Bandwidth > 0 {
			rate = cell{Text: fmt.Sprintf("%.0f", s.Bandwidth), Title: exact(s.Bandwidth) + " GB/s"}
		}
		if s.PeakShare > 0 {
			peak = cell{Text: ui.Percent(s.PeakShare), Title: exact(s.PeakShare)}
		}
		if x := speedupOf(w); x != nil {
			speedup = cell{Text: ui.Times(x), Title: exact(*x)}
		}
	}
	if baseline {
		return []cell{median, width, speedup, share, fastest, rate, peak, warm, theirs}
	}
	return []cell{median, width, share, fastest, rate, peak, warm}
}

// trust describes the state of the GPU during the measurements: one sentence for most workloads, and a table of those
// that were measured in another state or whose figures are in doubt.
func (r *Subject) trust(id string) (sentence string, t table) {
	t = table{ID: id, Caption: "Workloads with another GPU state",
		Note: "Reported by NVML; ranges cover all readings during the measurement."}
	t.Head = append([]column{{Text: "Workload"}}, axisColumns(r.Axes)...)
	if r.Split() {
		t.Head = append(t.Head, column{Text: "Place"}, column{Text: "GPU"})
	}
	t.Head = append(t.Head, column{Text: "SM clock", Right: true}, column{Text: "Memory clock", Right: true},
		column{Text: "Temperature", Right: true},
		column{Text: "Power", Right: true}, column{Text: "Throttled by"}, column{Text: "Other processes"},
		column{Text: "ECC errors", Title: "uncorrected, since the driver was loaded", Right: true},
		column{Text: "Measured", Title: "number of attempts until nothing disturbed it",
			Right: true}, column{Text: "In doubt"})
	usual, timed := r.usualClock(), 0
	var steady []*event.Stamp
	for i := range r.Workloads {
		w := &r.Workloads[i]
		s := w.Samples
		if s == nil {
			continue
		}
		timed++
		cells := append([]cell{uuidCell(w.UUID)}, axisCells(r.Axes, w.Axes)...)
		if r.Split() {
			d := r.device(w)
			cells = append(cells, cell{Text: clean(w.Place, 60)}, cell{Text: clean(d.Name, 40), Title: clean(d.UUID, 60)})
		}
		doubts := slices.Concat(s.Disturbed, s.Warnings)
		if s.Truncated {
			doubts = append(doubts, "a time limit ended the measurement")
		}
		if s.TimerNote != "" {
			doubts = append(doubts, s.TimerNote)
		}
		if s.Stamp == nil {
			doubts = append(doubts, "GPU state not recorded")
			cells = append(cells, make([]cell, 7)...)
		} else {
			if s.Stamp.Note != "" {
				doubts = append(doubts, s.Stamp.Note)
			}
			cells = append(cells, stampCells(s.Stamp)...)
		}
		for i := range doubts {
			doubts[i] = clean(doubts[i], 200)
		}
		doubt := cell{Text: "none"}
		if len(doubts) > 0 {
			doubt = cell{Text: "* " + strings.Join(doubts, "; "), Class: "doubt"}
		}
		cells = append(cells, cell{Text: times(max(1, s.Measured))}, doubt)
		odd := s.Measured > 1 || s.Stamp != nil && !r.Split() && clockCell(s.Stamp).Text != usual
		if odd || slices.ContainsFunc(cells, func(c cell) bool { return c.Class == "doubt" }) {
			t.add(cells...)
		} else {
			steady = append(steady, s.Stamp)
		}
	}
	if len(steady) == 0 {
		return "", t
	}
	count, others := plain.Count(timed, "workload"), ""
	if len(steady) < timed {
		count, others = fmt.Sprintf("%d of %s", len(steady), count), "; the others are below"
	}
	return fmt.Sprintf("%s timed%s, without throttling, other processes or unreliable figures%s.", count, state(steady),
		others), t
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
	var lo, hi [3]float64
	for i, s := range stamps {
		if s == nil {
			return ""
		}
		a, b := readings(s)
		for n, v := range [3][2]int{{a.SMClockMHz, b.SMClockMHz}, {a.MemoryClockMHz, b.MemoryClockMHz},
			{a.TemperatureC, b.TemperatureC}} {
			if i == 0 {
				lo[n] = float64(v[0])
			}
			lo[n], hi[n] = min(lo[n], float64(v[0])), max(hi[n], float64(v[1]))
		}
	}
	var parts []string
	for n, unit := range []string{"MHz", "MHz", "°C"} {
		if text := between(lo[n], hi[n], 0, unit).Text; text != "" {
			parts = append(parts, []string{"", "memory ", ""}[n]+text)
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

// readings returns the minimum and maximum of each GPU figure during the measurement.
func readings(s *event.Stamp) (lo, hi event.Reading) {
	if s.During.N == 0 {
		return s.Before, s.After
	}
	return s.During.Min, s.During.Max
}

func clockCell(s *event.Stamp) cell {
	lo, hi := readings(s)
	c := between(float64(lo.SMClockMHz), float64(hi.SMClockMHz), 0, "MHz")
	c.Title = fmt.Sprintf("before %d MHz, %d °C, %.0f W; after %d MHz, %d °C, %.0f W; %d readings between",
		s.Before.SMClockMHz, s.Before.TemperatureC, s.Before.PowerW,
		s.After.SMClockMHz, s.After.TemperatureC, s.After.PowerW, s.During.N)
	if s.ClocksLocked {
		c.Text += " locked"
	}
	return c
}

// stampCells returns the cells from the SM clock to the ECC errors.
func stampCells(s *event.Stamp) []cell {
	lo, hi := readings(s)
	throttled, others := cell{Text: "none"}, cell{Text: "none"}
	if len(s.ThrottleReasons) > 0 {
		throttled = cell{Text: clean(strings.Join(s.ThrottleReasons, ", "), 200), Class: "doubt"}
	}
	if len(s.OtherProcesses) > 0 {
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
		others = cell{Text: strings.Join(list, "; "), Class: "doubt"}
	}
	ecc := cell{Text: "off"}
	if s.ECC {
		ecc.Text = fmt.Sprint(s.ECCErrors)
	}
	if s.ECCErrors > 0 {
		ecc.Class = "doubt"
	}
	return []cell{clockCell(s), between(float64(lo.MemoryClockMHz), float64(hi.MemoryClockMHz), 0, "MHz"),
		between(float64(lo.TemperatureC), float64(hi.TemperatureC), 0, "°C"),
		between(lo.PowerW, hi.PowerW, 0, "W"), throttled, others, ecc}
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

// kernels lists the launches of one call, each distinct launch once.
func (r *Subject) kernels(id string) table {
	t := table{ID: id, Caption: "GPU work of one call",
		Note: "Recorded by CUPTI. Registers and local memory per thread, shared memory per block.",
		Head: []column{{Text: "Kernel"}, {Text: "Step", Title: "position in the call"}, {Text: "Grid", Right: true},
			{Text: "Block", Right: true}, {Text: "Registers", Right: true},
			{Text: "Static shared", Right: true}, {Text: "Dynamic shared", Right: true},
			{Text: "Local", Title: "spills and arrays, per thread", Right: true},
			{Text: "Time, µs", Title: "of this step, from the smallest to the largest median of a workload", Right: true},
			{Text: "Workloads"}}}
	type launch struct {
		event.Activity
		at, of int
	}
	users := map[launch][]string{} // axes of the workloads, in the order of the run
	counts := map[launch]int{}
	times := map[launch][]float64{}
	var order []launch
	for _, w := range r.Workloads {
		if w.Samples == nil {
			continue
		}
		for i, k := range w.Samples.Kernels {
			ns := k.MedianNS
			k.MedianNS = 0
			l := launch{k, i + 1, len(w.Samples.Kernels)}
			times[l] = append(times[l], ns)
			if users[l] == nil {
				order = append(order, l)
			}
			if axes := axesText(w.Axes); !slices.Contains(users[l], axes) {
				users[l] = append(users[l], axes)
			}
			counts[l]++
		}
	}
	for _, l := range order {
		of := users[l]
		text := fmt.Sprintf("%d: ", counts[l]) + strings.Join(of[:min(3, len(of))], "; ")
		if len(of) > 3 {
			text += "; ..."
		}
		row := []cell{kernelCell(l.Activity), {Text: fmt.Sprintf("%d of %d", l.at, l.of)}}
		if l.Kind == "kernel" {
			row = append(row, sizeCell(l.Grid), sizeCell(l.Block), cell{Text: fmt.Sprint(l.Registers)},
				bytesCell(int64(l.StaticSharedBytes)),
				bytesCell(int64(l.DynamicSharedBytes)), bytesCell(int64(l.LocalBytes)))
		} else {
			row = append(row, make([]cell, 6)...)
		}
		who := cell{Text: text}
		if len(text) > 30 {
			who.Class = "names"
		}
		t.add(append(row, between(slices.Min(times[l])/1e3, slices.Max(times[l])/1e3, 2, ""), who)...)
	}
	t.drop("Time, µs")
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

func sizeCell(s [3]int) cell { return cell{Text: fmt.Sprintf("%d × %d × %d", s[0], s[1], s[2])} }

func bytesCell(n int64) cell { return cell{Text: fmt.Sprintf("%d B", n)} }

// facts returns the table of the environment.
func (r *Subject) facts(id string) table {
	t := table{ID: id, Caption: "Details of the run", Head: []column{{Text: "Fact"}, {Text: "Value"}}}
	for _, f := range Facts(r.Run) {
		t.add(cell{Text: f[0]}, cell{Text: clean(f[1], 600)})
	}
	return t
}

// overview has one row for each run.
func (r *Report) overview() table {
	t := table{ID: "overview", Caption: "Solutions and devices", Head: []column{{Text: "Run"}, {Text: "Solution"},
		{Text: "Passed", Right: true},
		{Text: "Mean latency", Title: "mean over the passed workloads; empty for several places", Right: true},
		{Text: "Baseline"},
		{Text: "Mean speed-up", Title: "over the baseline; the contest's score if that is the reference", Right: true},
		{Text: "Findings", Right: true}, {Text: "Device"}}}
	for _, run := range r.Runs {
		baseline, score := cell{}, cell{}
		if b := run.Run.Run.Baseline; b != nil {
			baseline.Text = clean(b.Name, 60)
		}
		if d := run.Done; d != nil && d.Score != nil {
			score = cell{Text: fmt.Sprintf("%.3f", *d.Score), Title: exact(*d.Score)}
		}
		t.add(cell{Text: clean(run.ID, 60), Class: "code"}, cell{Text: run.Name()}, cell{Text: run.PassedText("")},
			nanos(run.Mean()), baseline, score, cell{Text: fmt.Sprint(run.Totals().Findings)}, cell{Text: run.where()})
	}
	t.drop("Mean latency", "Baseline", "Mean speed-up")
	return t
}

// configurations lists the settings that differ between the runs. It has no rows if none differs.
func (r *Report) configurations() table {
	t := table{ID: "configurations", Caption: "Differences between runs", Head: []column{{Text: "Fact"}}}
	var names []string
	facts := make([]map[string]string, len(r.Runs))
	for i, run := range r.Runs {
		t.Head = append(t.Head, column{Text: plain.Cut(run.ID, 40), Title: clean(run.ID, 120)})
		facts[i] = map[string]string{}
		for _, f := range Facts(run.Run) {
			if !slices.Contains(names, f[0]) {
				names = append(names, f[0])
			}
			facts[i][f[0]] = f[1]
		}
	}
	for _, name := range names {
		if slices.Contains([]string{"run", "state", "started", "errors", "command"}, name) {
			continue
		}
		cells, same := []cell{{Text: name}}, true
		for _, f := range facts {
			cells = append(cells, cell{Text: clean(f[name], 200)})
			same = same && f[name] == facts[0][name]
		}
		if !same {
			t.add(cells...)
		}
	}
	return t
}

// table compares the runs workload by workload.
func (c *Comparison) table(id string) table {
	t := table{ID: id, Caption: "B against A, workload by workload",
		Note: "B/A is a ratio of medians with its 95 % interval; above 1, B is slower. The verdict is on B."}
	names := map[string]bool{}
	for _, row := range c.Result.Rows {
		for name := range row.Axes {
			names[name] = true
		}
	}
	axes := slices.Sorted(maps.Keys(names))
	t.Head = append(append([]column{{Text: "Workload"}}, axisColumns(axes)...), column{Text: "A", Right: true},
		column{Text: "B", Right: true}, column{Text: "B/A", Right: true},
		column{Text: "95 % interval", Right: true}, column{Text: "p", Title: "of the Mann-Whitney test", Right: true},
		column{Text: "Verdict on B"})
	for _, row := range c.Result.Rows {
		ratio, interval := RatioText(row.Ratio)
		r, i, p := cell{Text: ratio}, cell{Text: interval}, cell{}
		if row.Ratio != nil {
			r.Title, i.Title = exact(row.Ratio.Value), exact(row.Ratio.Lo)+" to "+exact(row.Ratio.Hi)
		}
		if row.P != nil {
			p = cell{Text: fmt.Sprintf("%.4f", *row.P), Title: exact(*row.P)}
			if *row.P < 0.0001 {
				p.Text = "< 0.0001"
			}
		}
		verdict := cell{Text: clean(VerdictText(row.Verdict, row.Why), 200), Class: news(row.Verdict)}
		if len(row.Warnings) > 0 {
			verdict.Text += " *"
			verdict.Title = clean(strings.Join(row.Warnings, "; "), 400)
		}
		t.add(append(append([]cell{uuidCell(row.UUID)}, axisCells(axes, row.Axes)...), sideCell(row.A), sideCell(row.B), r, i,
			p, verdict)...)
	}
	return t
}

// Table returns the comparison as ui.Terminal.Table takes it: the alignment of the columns, then the heading and one
// row for each workload. It returns nothing if Conclusion already says everything.
func Table(res *compare.Result) (layout string, rows [][]string) {
	if untimed(res) {
		return "", nil
	}
	t := (&Comparison{Result: res}).table("")
	rows = make([][]string, 1+len(t.Rows))
	for i, c := range t.Head {
		if c.Text == "p" {
			continue
		}
		rows[0] = append(rows[0], plain.Cut(strings.ToUpper(c.Text), 13))
		switch {
		case c.Text == "A" || c.Text == "B" || c.Text == "B/A":
			layout += "R"
		case c.Right:
			layout += "r"
		default:
			layout += "l"
		}
		for n, row := range t.Rows {
			rows[1+n] = append(rows[1+n], row[i].Text)
		}
	}
	return layout, rows
}

func sideCell(s compare.Side) cell {
	c := cell{Text: clean(SideText(s), 40)}
	if s.N > 0 {
		c.Title = fmt.Sprintf("%s, n %d; official %s", exactNS(s.MedianNS), s.N, exactNS(s.OfficialNS))
	}
	return c
}

func news(v compare.Verdict) string {
	switch v {
	case compare.Faster:
		return "good"
	case compare.Slower:
		return "bad"
	}
	return ""
}

package ui

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// Run returns a sink that shows a run on Out: one table row per verdict, then the totals.
func (t *Terminal) Run() event.Sink {
	show, _ := t.Turn(nil)
	return show
}

// A Turn is the result of one of several runs of a submission that changes in between.
type Turn struct {
	shown   map[string]string  // status and reason by workload
	latency map[string]float64 // official, in ms, of passed workloads
	Ended   bool               // all workloads of the run had their turn
}

// Turn returns a sink that shows a run, and its result. After a previous turn it shows only workloads with another
// verdict, and one line for the whole.
func (t *Terminal) Turn(last *Turn) (event.Sink, *Turn) {
	turn := &Turn{shown: map[string]string{}, latency: map[string]float64{}}
	v := &runView{t: t, places: map[string]bool{}, warned: map[string]bool{}, turn: turn, last: last}
	return v.event, turn
}

// repeats records what is shown for a workload, and reports whether the last turn showed the same. If not, it clears
// the bar.
func (v *runView) repeats(uuid, shown string) bool {
	v.turn.shown[uuid] += shown
	if v.last != nil && strings.HasPrefix(v.last.shown[uuid], v.turn.shown[uuid]) {
		return true
	}
	v.bar.Clear()
	return false
}

// endTurn prints the line for a turn after another.
func (v *runView) endTurn(d *event.Done) {
	changed, n, logs := 0, 0, 0.0
	for _, w := range v.run.Workloads {
		uuid := w.UUID
		if v.last.shown[uuid] != v.turn.shown[uuid] {
			changed++
		}
		if a, b := v.last.latency[uuid], v.turn.latency[uuid]; a > 0 && b > 0 {
			n, logs = n+1, logs+math.Log(a/b)
		}
	}
	text := fmt.Sprintf("%s  %s", time.Now().Format(time.TimeOnly), v.totals(d))
	if changed > 0 {
		text += ", changed: " + plain.Count(changed, "workload")
	} else {
		text += ", as before"
	}
	if n > 0 {
		text += fmt.Sprintf("; %.3fx as fast as the run before", math.Exp(logs/float64(n)))
	}
	fmt.Fprintln(v.t.Out, v.t.Fit(text, 2))
}

// Progress returns a sink that shows the build, failures, findings and warnings of run i, from 0, of n that are
// compared, and a bar for the last one. Something else must show the result.
func (t *Terminal) Progress(i, n int) event.Sink {
	var b *Bar
	var run *event.Run
	shown, label := event.Shown{}, string(rune('A'+i))
	return func(e event.Event) error {
		line := func(code, what, text string) {
			b.Clear()
			fmt.Fprintf(t.Err, "%s %s: %s\n", t.paint(code, what), label, plain.Line(t.locate(text)))
		}
		workload := "workload " + plain.Short(e.Workload)
		switch {
		case e.Run != nil:
			run = e.Run
		case e.Type == event.TypeBuilding && run != nil:
			b.Clear()
			t.Note("building %s (%d of %d)", cmp.Or(run.Variant, label+": "+run.Name()), i+1, n)
		case e.Started != nil && i == n-1:
			if b == nil {
				b = t.Bar(int64(e.Started.Total), "", false)
			}
			b.Describe(plain.Short(e.Workload))
			b.Set(int64(e.Started.Index - 1))
		case e.Evaluated != nil && !e.Evaluated.Passed():
			line(red, "fisub:", workload+": "+string(e.Evaluated.Status())+": "+e.Evaluated.Detail)
		case e.Type == event.TypeFailed:
			line(red, "fisub:", workload+": no verdict: "+e.Message.Text)
		case e.Finding != nil:
			line(yellow, "finding:", workload+": "+e.Finding.Check+": "+shown.Text(e.Finding, e.Workload))
		case e.Type == event.TypeWarning:
			b.Clear()
			t.Warn(label+": "+plain.Line(t.locate(e.Message.Text)), e.Message.Hint)
		case e.Done != nil:
			b.Finish()
		}
		return nil
	}
}

type runView struct {
	t       *Terminal
	run     *event.Run
	bar     *Bar
	axes    []string
	figures []Figure // on the terminal
	columns []column // nil before the first row
	samples map[string]*event.Samples
	timer   string
	doubts  map[string][]string // workloads by reason to doubt their timings
	l2      string              // "cold", "warm"
	emptyNS float64             // time of an empty kernel; 0: unknown
	places  map[string]bool     // of a remote run; true once started. Empty for a local run
	warned  map[string]bool     // warnings already shown
	above   string              // detail and log below the previous row
	shown   event.Shown
	turn    *Turn // result of this run
	last    *Turn // of the run before; nil for the first
}

func (v *runView) event(e event.Event) error {
	t := v.t
	switch {
	case v.run == nil && e.NeedsRun():
	case e.JobState != nil:
		v.bar.Clear()
		v.job(e.Place, e.JobState)
	case e.Run != nil:
		v.start(e.Run)
	case e.Type == event.TypeBuilding:
		v.bar.Clear()
		t.Note("building %s for %s", v.run.Name(), Device(v.run.Device))
	case e.Built != nil && e.Built.OK && t.Verbose && e.Built.Log != "":
		t.Note("%s", strings.TrimRight(e.Built.Log, "\n"))
	case e.Built != nil && e.Built.OK && e.Built.Seconds >= 0.5:
		t.Note("built in %.1f s", e.Built.Seconds)
	case e.Started != nil:
		if v.bar == nil {
			v.bar = t.Bar(int64(e.Started.Total), "", false)
		}
		v.bar.Describe(plain.Short(e.Workload))
		v.bar.Set(int64(e.Started.Index - 1))
	case e.Samples != nil:
		v.samples[e.Workload] = e.Samples
		v.timer, v.l2 = e.Samples.Timer, L2(e.Samples.ColdL2)
		if e.Samples.EmptyNS > 0 {
			v.emptyNS = e.Samples.EmptyNS
		}
	case e.Evaluated != nil:
		if ms := e.Evaluated.Latency(); ms != nil {
			v.turn.latency[e.Workload] = *ms
		}
		if !v.repeats(e.Workload, string(e.Evaluated.Status())+e.Evaluated.Detail) {
			v.row(e.Workload, e.Place, e.Evaluated, nil)
		}
	case e.Type == event.TypeFailed:
		if !v.repeats(e.Workload, e.Message.Text) {
			v.row(e.Workload, e.Place, nil, e.Message)
		}
	case e.Finding != nil:
		if !v.repeats(e.Workload, e.Finding.Check) {
			text := v.shown.Text(e.Finding, e.Workload)
			fmt.Fprintf(t.Out, "          %s %s: %s\n", t.paint(yellow, "finding:"), plain.Line(e.Finding.Check),
				plain.Line(v.locate(text)))
			if text == e.Finding.Text {
				for _, line := range v.source(e.Finding.Source) {
					fmt.Fprintln(t.Out, line)
				}
			}
		}
	case e.Type == event.TypeWarning && e.Place != "" && v.warned[e.Message.Text]:
	case e.Type == event.TypeWarning:
		if !v.repeats("", e.Message.Text) {
			v.warned[e.Message.Text] = v.warned[e.Message.Text] || e.Place != ""
			t.Warn(e.Message.Text, e.Message.Hint)
		}
	case e.Done != nil:
		v.bar.Finish()
		v.turn.Ended = true
		if v.last == nil {
			v.done(e.Done)
		} else {
			v.endTurn(e.Done)
		}
	}
	return nil
}

func (v *runView) start(r *event.Run) {
	*v = runView{t: v.t, places: v.places, warned: v.warned, turn: v.turn, last: v.last, run: r,
		samples: map[string]*event.Samples{}, doubts: map[string][]string{}, shown: event.Shown{}}
	t := v.t
	t.Note("solution   %s", plain.Line(fmt.Sprintf("%s by %s, %s, %s", r.Solution, r.Author, r.Language,
		plain.Short(r.ContentHash))))
	t.Note("definition %s", plain.Line(r.Definition+", "+r.Selection()))
	t.Note("device     %s", Device(r.Device))
	if len(v.places) == 0 {
		t.gaps("", r.Host)
	}
	if b := r.Baseline; b != nil {
		t.Note("baseline   %s", plain.Line(fmt.Sprintf("%s: %s, %s", b.Name, b.Solution, plain.Short(b.ContentHash))))
	}
	if r.Device.Emulated {
		t.Note("           virtual GPU: correctness only, no latencies")
	}
	v.axes = AxisNames(r.Workloads, func(w event.WorkloadRef) map[string]int { return w.Axes })
	v.figures = slices.DeleteFunc(Figures(r, !r.Device.Emulated), func(f Figure) bool { return f.width == 0 })
}

func (v *runView) job(place string, j *event.JobChange) {
	v.places[place] = v.places[place] || j.Device != nil
	text := j.Phase
	switch {
	case j.Device != nil:
		text += " on " + Device(*j.Device)
	case j.Text != "":
		text += ": " + j.Text
	}
	v.t.Note("%s", plain.Line(place+": "+text))
	if j.Host != nil {
		v.t.gaps(place+": ", *j.Host)
	}
}

// gaps prints the restrictions that a host's sandbox does not enforce.
func (t *Terminal) gaps(place string, h event.Host) {
	if _, gaps, found := strings.Cut(h.Confined, "; not enforced: "); found {
		t.Note("%ssandbox    not enforced: %s (fisub doctor)", place, plain.Line(gaps))
	}
}

// tableColumns returns the columns of the run's table. Axis names have slack, but not their values.
func (v *runView) tableColumns() []column {
	all := []column{{title: "WORKLOAD", width: 8}}
	for _, name := range v.axes {
		values := 0
		for _, w := range v.run.Workloads {
			values = max(values, len(fmt.Sprint(w.Axes[name])))
		}
		title := strings.ToUpper(plain.Line(name))
		width := max(utf8.RuneCountInString(title), values)
		all = append(all, column{title: title, width: width, number: true, slack: max(0, width-max(values, 4))})
	}
	all = append(all, column{title: "STATUS", width: len("INCORRECT_NUMERICAL")})
	for _, f := range v.figures {
		title := strings.ReplaceAll(strings.ToUpper(f.Heading), "-", "")
		all = append(all, column{title: title, width: f.width, number: true, order: f.order})
	}
	if !v.run.Device.Emulated {
		all = append(all, column{width: 1}) // the mark of unreliable timings
	}
	if len(v.places) > 0 {
		place := column{title: "PLACE", width: len("PLACE")}
		for name := range v.places {
			place.width = max(place.width, utf8.RuneCountInString(name))
		}
		all = append(all, place)
	}
	return all
}

// head prints the headings. It waits for the first row so that no build output comes between.
func (v *runView) head() {
	if v.columns != nil {
		return
	}
	v.columns = v.tableColumns()
	if IsTerminal(v.t.Out) {
		shrink(v.columns, min(99, Width(v.t.Out)-1))
	}
	var cells []string
	for _, c := range v.columns {
		cells = append(cells, plain.Cut(c.title, c.width))
	}
	fmt.Fprintln(v.t.Out, v.t.paint(bold, line(align(v.columns, cells))))
}

// row prints the row of a workload, with a verdict or the reason for a missing one, and the lines below it.
func (v *runView) row(uuid, place string, e *event.Evaluated, missing *event.Message) {
	t := v.t
	v.head()
	w := event.WorkloadRef{}
	if i := slices.IndexFunc(v.run.Workloads, func(w event.WorkloadRef) bool { return w.UUID == uuid }); i >= 0 {
		w = v.run.Workloads[i]
	}
	status, color, mark, further, s := "no verdict", yellow, " ", "", v.samples[uuid]
	if e != nil {
		w.Axes, status, color = e.Axes(), string(e.Status()), red
	}
	if e != nil && e.Passed() {
		color = green
	}
	if s != nil && e != nil && e.Latency() != nil {
		if t.Wide {
			further = furtherFigures(s, v.run.Baseline != nil)
		}
		if len(s.Disturbed) > 0 {
			mark = t.paint(yellow, "*")
		}
		for _, sentence := range s.Disturbed {
			v.doubts[sentence] = append(v.doubts[sentence], plain.Short(uuid))
		}
		for _, w := range s.Warnings {
			t.Warn(fmt.Sprintf("workload %s: %s", plain.Line(uuid), plain.Line(w)), "")
		}
	}
	cells := []string{plain.Short(uuid)}
	for _, name := range v.axes {
		cell := "-"
		if n, ok := w.Axes[name]; ok {
			cell = fmt.Sprint(n)
		}
		cells = append(cells, cell)
	}
	cells = append(cells, t.paint(color, fmt.Sprintf("%-*s", v.columns[len(cells)].width, plain.Line(status))))
	for _, f := range v.figures {
		cells = append(cells, f.onTerminal(e, s))
	}
	if !v.run.Device.Emulated {
		cells = append(cells, mark)
	}
	lines := []string{line(align(v.columns, append(cells, plain.Line(place))))}
	if further != "" {
		lines = append(lines, v.dim(further))
	}
	if w.Tests != "" && color != green {
		lines = append(lines, v.dim(v.run.Set+": "+w.Tests))
	}
	switch {
	case e == nil:
		lines = append(lines, v.below(uuid, missing.Text, missing.Log, nil)...)
	case !e.Passed():
		lines = append(lines, v.below(uuid, e.Detail, e.Log(), e.Source)...)
	}
	fmt.Fprintln(t.Out, strings.Join(lines, "\n"))
}

// below returns the lines below a row that did not pass. A traceback precedes other output.
func (v *runView) below(uuid, detail, log string, source []event.Excerpt) (lines []string) {
	text := plain.NoAddresses(detail + "\x00" + log)
	if v.above == text {
		return []string{v.dim("(as above)")}
	}
	v.above = text
	rest := strings.Split(strings.TrimRight(log, "\n"), "\n")
	if i := slices.Index(rest, "Traceback (most recent call last):"); i > 0 {
		rest = slices.Concat(rest[i:], rest[:i])
	}
	const most, widest = 12, 2000 // lines, and bytes of one
	more := ""
	if len(rest) > most && !v.t.Verbose {
		more = fmt.Sprintf("... %d more lines in the run folder, log/%s.log", len(rest)-most, uuid)
		rest = rest[:most]
	}
	for i, line := range append(append([]string{detail}, rest...), more) {
		if len(line) > widest && !v.t.Verbose {
			line = fmt.Sprintf("%s... %d more bytes in the run folder, log/%s.log", strings.ToValidUTF8(line[:widest], ""),
				len(line)-widest, uuid)
		}
		if line != "" && (i == 0 || !strings.HasSuffix(line, detail) && !strings.HasSuffix(detail, strings.TrimSpace(line))) {
			lines = append(lines, v.dim(line))
		}
		if len(source) > 0 && names(line, source[0]) {
			if x := source[0]; !strings.Contains(log, strings.TrimSpace(x.Lines[x.Line-x.First])) {
				lines = append(lines, v.source(source)...)
			}
			source = nil
		}
	}
	return lines
}

// names reports whether line names the place of x.
func names(line string, x event.Excerpt) bool {
	return slices.ContainsFunc(plain.FindPlaces(line),
		func(p plain.Place) bool { return p.File == x.File && p.Line == x.Line })
}

// source returns the line of the first place in list, with a marker below its column.
func (v *runView) source(list []event.Excerpt) (lines []string) {
	if len(list) == 0 {
		return nil
	}
	x := list[0]
	text, at := x.Lines[x.Line-x.First], 0
	runes := []rune(text)
	marked := x.Column > 0 && x.Column <= len(runes)
	if marked {
		at = len(string(runes[:x.Column-1]))
	}
	lines = strings.Split(plain.MarkLine(x.Line, text, at, at), "\n")
	if !marked {
		lines = lines[:1]
	}
	for i, line := range lines {
		lines[i] = "          " + v.t.paint(dim, line)
	}
	return lines
}

func (v *runView) dim(line string) string {
	return "          " + v.t.paint(dim, plain.Line(v.locate(line)))
}

// locate replaces source paths in text with paths that the user knows.
func (v *runView) locate(text string) string {
	if v.run == nil || v.run.Folder == "" {
		return v.t.locate(text)
	}
	return plain.Places(text, v.run.Folder, v.run.Sources)
}

// totals counts the verdicts: "18 of 20 PASSED, 2 findings".
func (v *runView) totals(d *event.Done) string {
	t := v.t
	total := d.Passed + d.Failed + d.Missing
	text := fmt.Sprintf("%d of %d PASSED", d.Passed, total)
	switch {
	case d.Passed == total:
		text = t.paint(green, text)
	case d.Passed < total-d.Left:
		text = t.paint(red, text)
	}
	if missing := d.Missing - d.Left; missing > 0 {
		text += fmt.Sprintf(", %d without a verdict", missing)
	}
	if d.Left > 0 {
		text += fmt.Sprintf(", %d not run", d.Left)
	}
	if d.Findings > 0 {
		text += ", " + t.paint(yellow, plain.Count(d.Findings, "finding"))
	}
	return text
}

func (v *runView) done(d *event.Done) {
	t := v.t
	text := v.totals(d) + " on " + Device(v.run.Device)
	began := 0
	for _, started := range v.places {
		if started {
			began++
		}
	}
	if began > 1 {
		text += " and " + plain.Count(began-1, "other place")
	}
	text += fmt.Sprintf(" in %.1f s", d.Seconds)
	lines := []string{text}
	judged := d.Passed+d.Failed > 0
	if tol := v.run.Tolerance; judged && (tol.Atol > 0 || tol.Rtol > 0) {
		lines = append(lines, Tolerance(tol))
	}
	if v.timer != "" {
		lines = append(lines, v.legend())
	}
	if b := v.run.Baseline; b != nil && d.Score != nil {
		lines = append(lines, ScoreText(b, d))
	}
	if d.BoardNS != nil {
		lines = append(lines, BoardText(v.run.Ranking, *d.BoardNS))
	}
	for _, sentence := range slices.Sorted(maps.Keys(v.doubts)) {
		uuids := v.doubts[sentence]
		which := "workload " + uuids[0]
		if len(uuids) > 1 {
			which = fmt.Sprintf("%d workloads", len(uuids))
		}
		lines = append(lines, fmt.Sprintf("%s %s, unreliable in every measurement: %s", t.paint(yellow, "*"), which,
			plain.Line(sentence)))
	}
	fmt.Fprintln(t.Out, t.Fit(strings.Join(lines, "\n"), 2))
	if l := v.run.Checked; l != nil && judged {
		text := l.Short()
		if t.Verbose {
			text = l.String()
		}
		t.Note("%s", t.Fit(plain.Line(text), 2))
	}
}

func (v *runView) legend() string {
	text := "latency: " + Latency(v.run.Profile, v.l2, v.timer) + "\n±: half of the 95 % interval of the median"
	if v.emptyNS > 0 {
		text += fmt.Sprintf("\ncopy: time of the roofline copy, a plain copy of as many bytes, over the latency; an "+
			"empty kernel takes %s", Micros(v.emptyNS))
	}
	return text
}

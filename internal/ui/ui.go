// Package ui shows a run on the terminal: a table on stdout, everything else on stderr, and a progress bar if stderr is
// a terminal. It only renders events.
package ui

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"fisub/internal/event"
	"fisub/internal/plain"
)

// A Terminal shows output to the user.
type Terminal struct {
	In       io.Reader // keyboard input; may be nil
	Out, Err io.Writer // write errors are ignored: use Watch to see them
	Color    bool      // ANSI colours on Out and Err
	Quiet    bool      // no progress and no notes
	Verbose  bool      // complete logs
	Wide     bool      // add a line of figures to each row of a run's table

	// Places, if not nil, replaces source paths in a message with paths that the user knows.
	Places func(text string) string

	noted map[string]bool // by NoteOnce
}

// UseColor reports whether to use colours in mode "auto", "always" or "never". "auto" means on terminals, unless
// NO_COLOR is set or TERM is dumb.
func UseColor(mode string, w io.Writer) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(w)
}

// A file is an *os.File or a wrapper around one.
type file interface{ Fd() uintptr }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(file)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of w, or 80 if w is not a terminal.
func Width(w io.Writer) int {
	if f, ok := w.(file); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 80
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

func (t *Terminal) paint(code, s string) string {
	if !t.Color || s == "" || code == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Note prints a progress note to Err.
func (t *Terminal) Note(format string, args ...any) {
	if !t.Quiet {
		fmt.Fprintln(t.Err, plain.Text(fmt.Sprintf(format, args...)))
	}
}

// NoteOnce is Note, unless it has printed the same note before.
func (t *Terminal) NoteOnce(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !t.noted[text] {
		t.Note("%s", text)
		if t.noted == nil {
			t.noted = map[string]bool{}
		}
		t.noted[text] = true
	}
}

// Warn prints a warning to Err, followed by hint unless that is "".
func (t *Terminal) Warn(text, hint string) {
	t.say(t.paint(yellow, "warning:"), text, hint)
}

// Error prints an error and its hint to Err. text may have several lines.
func (t *Terminal) Error(text, hint string) {
	t.say(t.paint(red, "fisub:"), text, hint)
}

func (t *Terminal) say(what, text, hint string) {
	fmt.Fprintf(t.Err, "%s %s\n", what, plain.Text(text))
	if hint != "" {
		fmt.Fprintf(t.Err, "%s %s\n", t.paint(bold, "hint:"), plain.Text(hint))
	}
}

// Bar returns a progress bar over total steps on Err. Without a terminal, or on a dumb one, it returns nil, which is a
// valid *Bar.
func (t *Terminal) Bar(total int64, label string, bytes bool) *Bar {
	if t.Quiet || !IsTerminal(t.Err) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &Bar{progressbar.NewOptions64(total, progressbar.OptionSetWriter(t.Err),
		progressbar.OptionSetDescription(label),
		progressbar.OptionShowBytes(bytes), progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(50*time.Millisecond))}
}

// A Bar shows progress. A nil *Bar shows nothing.
type Bar struct{ bar *progressbar.ProgressBar }

// Set moves the bar to step n.
func (b *Bar) Set(n int64) {
	if b != nil {
		_ = b.bar.Set64(n)
	}
}

// Describe changes the label.
func (b *Bar) Describe(label string) {
	if b != nil {
		b.bar.Describe(label)
	}
}

// Clear removes the bar from the screen until it moves again.
func (b *Bar) Clear() {
	if b != nil {
		_ = b.bar.Clear()
	}
}

// Finish removes the bar from the screen for good.
func (b *Bar) Finish() {
	if b != nil {
		_ = b.bar.Finish()
		_ = b.bar.Clear()
	}
}

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

// repeats records what is shown for a workload, and reports whether the last turn showed the same.
func (v *runView) repeats(uuid, shown string) bool {
	v.turn.shown[uuid] += shown
	return v.last != nil && strings.HasPrefix(v.last.shown[uuid], v.turn.shown[uuid])
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

// Progress returns a sink that shows failures, findings, warnings and optionally a bar on Err. Each line starts with
// label. Something else must show the result.
func (t *Terminal) Progress(label string, bar bool) event.Sink {
	var b *Bar
	shown := event.Shown{}
	return func(e event.Event) error {
		line := func(code, what, text string) {
			b.Clear()
			fmt.Fprintf(t.Err, "%s %s: %s\n", t.paint(code, what), label, plain.Line(t.placed(text)))
		}
		of := "workload " + plain.Short(e.Workload)
		switch {
		case e.Started != nil && bar:
			if b == nil {
				b = t.Bar(int64(e.Started.Total), "", false)
			}
			b.Describe(plain.Short(e.Workload))
			b.Set(int64(e.Started.Index - 1))
		case e.Evaluated != nil && !e.Evaluated.Passed():
			line(red, "fisub:", of+": "+string(e.Evaluated.Status())+": "+e.Evaluated.Detail)
		case e.Type == event.TypeFailed:
			line(red, "fisub:", of+": no verdict: "+e.Message.Text)
		case e.Finding != nil:
			line(yellow, "finding:", of+": "+e.Finding.Check+": "+shown.Text(e.Finding, e.Workload))
		case e.Type == event.TypeWarning:
			b.Clear()
			t.Warn(label+": "+plain.Line(t.placed(e.Message.Text)), e.Message.Hint)
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
	columns []column
	samples map[string]*event.Samples
	timer   string
	doubts  map[string][]string // workloads by reason to doubt their timings
	l2      string              // "cold", "warm"
	emptyNS float64             // time of an empty kernel; 0: unknown
	headed  bool
	places  map[string]bool // of a remote run; true once started. Empty for a local run
	warned  map[string]bool // warnings already shown
	said    string          // detail and log below the previous row
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
		if v.repeats(e.Workload, string(e.Evaluated.Status())+e.Evaluated.Detail) {
			return nil
		}
		v.bar.Clear()
		v.row(e.Workload, e.Place, e.Evaluated)
	case e.Type == event.TypeFailed:
		if v.repeats(e.Workload, e.Message.Text) {
			return nil
		}
		v.bar.Clear()
		v.unjudged(e.Workload, e.Place, e.Message)
	case e.Finding != nil:
		if v.repeats(e.Workload, e.Finding.Check) {
			return nil
		}
		v.bar.Clear()
		fmt.Fprintf(t.Out, "          %s %s: %s\n", t.paint(yellow, "finding:"), plain.Line(e.Finding.Check),
			plain.Line(v.placed(v.shown.Text(e.Finding, e.Workload))))
	case e.Type == event.TypeWarning:
		if v.repeats("", e.Message.Text) {
			return nil
		}
		if e.Place != "" {
			if v.warned[e.Message.Text] {
				return nil
			}
			v.warned[e.Message.Text] = true
		}
		v.bar.Clear()
		t.Warn(e.Message.Text, e.Message.Hint)
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
		samples: map[string]*event.Samples{},
		doubts:  map[string][]string{}, shown: event.Shown{}}
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
	names := map[string]bool{}
	for _, w := range r.Workloads {
		for name := range w.Axes {
			names[name] = true
		}
	}
	v.axes = slices.Sorted(maps.Keys(names))
}

// job shows a state change of a remote job.
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

// A column of the run table. Numbers are right-aligned, words left-aligned.
type column struct {
	title  string
	width  int
	number bool
	hidden bool // for lack of space
}

// columns returns the columns of a run's table. To fit into width, it cuts the longest axis names, but not their
// values, and then hides columns. fisub runs show prints all of them.
func columns(r *event.Run, axes []string, width int) []column {
	const statusWidth, errorWidth, timeWidth = len("INCORRECT_NUMERICAL"), len("1.00e-07"), len("1234.56 us")
	all := []column{{"WORKLOAD", 8, false, false}}
	least := []int{8}
	for _, name := range axes {
		values := 0
		for _, w := range r.Workloads {
			values = max(values, len(fmt.Sprint(w.Axes[name])))
		}
		title := strings.ToUpper(plain.Line(name))
		all = append(all, column{title, max(utf8.RuneCountInString(title), values), true, false})
		least = append(least, max(values, 4))
	}
	all = append(all, column{"STATUS", statusWidth, false, false}, column{"MAX ABS", errorWidth, true, false},
		column{"MAX REL", errorWidth, true, false})
	if !r.Device.Emulated {
		all = append(all, column{"MEDIAN", timeWidth, true, false}, column{"±", len("0.5 %"), true, false})
		if r.Baseline != nil {
			all = append(all, column{"SPEEDUP", len("SPEEDUP"), true, false})
		} else {
			all = append(all, column{"MIN", timeWidth, true, false})
		}
		if r.Floors {
			all = append(all, column{"COPY", len("100 %"), true, false})
		}
	}
	over := 2*(len(all)-1) - width
	for _, c := range all {
		over += c.width
	}
	for ; over > 0; over-- {
		widest := 0
		for i, few := range least {
			if all[i].width > few && (widest == 0 || all[i].width > all[widest].width) {
				widest = i
			}
		}
		if widest == 0 {
			break
		}
		all[widest].width--
	}
	for _, title := range []string{"MIN", "±", "MAX ABS", "COPY", "MAX REL"} {
		i := slices.IndexFunc(all, func(c column) bool { return c.title == title })
		if i >= 0 && over > 0 {
			all[i].hidden = true
			over -= all[i].width + 2
		}
	}
	for i := range all {
		all[i].title = plain.Cut(all[i].title, all[i].width)
	}
	return all
}

// lineWidth returns the maximum width of a table line on w: at most 99 on a terminal, else any.
func lineWidth(w io.Writer) int {
	if !IsTerminal(w) {
		return math.MaxInt
	}
	return min(99, Width(w)-1)
}

// line aligns cells in the columns and appends further cells.
func (v *runView) line(cells []string) string {
	var shown []string
	for i, cell := range cells {
		switch {
		case i >= len(v.columns):
		case v.columns[i].hidden:
			continue
		case v.columns[i].number:
			cell = left(cell, v.columns[i].width)
		default:
			cell = pad(cell, v.columns[i].width)
		}
		shown = append(shown, cell)
	}
	return strings.TrimRight(strings.Join(shown, "  "), " ")
}

// head prints the headings. It waits for the first row so that no build output comes between.
func (v *runView) head() {
	if v.headed {
		return
	}
	v.headed = true
	width := lineWidth(v.t.Out)
	if IsTerminal(v.t.Out) {
		if !v.run.Device.Emulated {
			width -= len("  *")
		}
		place := 0
		for name := range v.places {
			place = max(place, 2+len("PLACE"), 2+utf8.RuneCountInString(name))
		}
		width -= place
	}
	v.columns = columns(v.run, v.axes, width)
	var cells []string
	for _, c := range v.columns {
		cells = append(cells, c.title)
	}
	if len(v.places) > 0 && !v.run.Device.Emulated {
		cells = append(cells, " ")
	}
	if len(v.places) > 0 {
		cells = append(cells, "PLACE")
	}
	fmt.Fprintln(v.t.Out, v.t.paint(bold, v.line(cells)))
}

// begin returns the cells of a row up to the status, which is painted in color.
func (v *runView) begin(uuid string, axes map[string]int, status, color string) []string {
	v.head()
	cells := []string{plain.Short(uuid)}
	for _, name := range v.axes {
		cell := "-"
		if n, ok := axes[name]; ok {
			cell = fmt.Sprint(n)
		}
		cells = append(cells, cell)
	}
	return append(cells, v.t.paint(color, pad(plain.Line(status), v.columns[len(cells)].width)))
}

// unjudged prints the row of a workload without a verdict.
func (v *runView) unjudged(uuid, place string, why *event.Message) {
	i := slices.IndexFunc(v.run.Workloads, func(w event.WorkloadRef) bool { return w.UUID == uuid })
	var axes map[string]int
	if i >= 0 {
		axes = v.run.Workloads[i].Axes
	}
	cells := v.begin(uuid, axes, "no verdict", yellow)
	cells = append(cells, make([]string, max(0, len(v.columns)-len(cells)))...)
	if !v.run.Device.Emulated {
		cells = append(cells, " ")
	}
	lines := []string{v.line(append(cells, plain.Line(place)))}
	lines = append(append(lines, v.tests(uuid)...), v.below(uuid, why.Text, why.Log)...)
	fmt.Fprintln(v.t.Out, strings.Join(lines, "\n"))
}

// tests returns a line with the property tested by a workload of set edge, or nil.
func (v *runView) tests(uuid string) []string {
	i := slices.IndexFunc(v.run.Workloads, func(w event.WorkloadRef) bool { return w.UUID == uuid })
	if i < 0 || v.run.Workloads[i].Tests == "" {
		return nil
	}
	return []string{v.dim(v.run.Set + ": " + v.run.Workloads[i].Tests)}
}

// below returns the lines below a row that did not pass. A traceback precedes other output.
func (v *runView) below(uuid, detail, log string) (lines []string) {
	if said := detail + "\x00" + log; said == v.said {
		return []string{v.dim("(as above)")}
	} else {
		v.said = said
	}
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
	}
	return lines
}

func (v *runView) dim(line string) string {
	return "          " + v.t.paint(dim, plain.Line(v.placed(line)))
}

// placed replaces source paths in text with paths that the user knows.
func (v *runView) placed(text string) string {
	if v.run == nil || v.run.Folder == "" {
		return v.t.placed(text)
	}
	return plain.Places(text, v.run.Folder, v.run.Sources)
}

// placed applies t.Places if it is not nil.
func (t *Terminal) placed(text string) string {
	if t.Places == nil {
		return text
	}
	return t.Places(text)
}

func (v *runView) row(uuid, place string, e *event.Evaluated) {
	t := v.t
	color := green
	if !e.Passed() {
		color = red
	}
	abs, rel := e.Errors()
	cells := append(v.begin(uuid, e.Axes(), string(e.Status()), color), ErrorText(abs), ErrorText(rel))
	further, mark := "", " "
	latency := e.Latency()
	if latency != nil {
		cells = append(cells, Micros(*latency*1e6))
	}
	if s := v.samples[uuid]; s != nil && latency != nil {
		cells = append(cells, Spread(s.Interval))
		if v.run.Baseline != nil {
			cells = append(cells, Times(e.Speedup()))
		} else {
			cells = append(cells, Micros(float64(s.MinNS)))
		}
		if v.run.Floors {
			cells = append(cells, Percent(s.CopyShare))
		}
		if t.Wide {
			further = figures(s, v.run.Baseline != nil)
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
	cells = append(cells, make([]string, max(0, len(v.columns)-len(cells)))...)
	if !v.run.Device.Emulated {
		cells = append(cells, mark)
	}
	lines := []string{v.line(append(cells, plain.Line(place)))}
	if further != "" {
		lines = append(lines, v.dim(further))
	}
	if !e.Passed() {
		lines = append(append(lines, v.tests(uuid)...), v.below(uuid, e.Detail, e.Log())...)
	}
	fmt.Fprintln(t.Out, strings.Join(lines, "\n"))
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
	for _, is := range v.places {
		if is {
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
	for _, sentence := range slices.Sorted(maps.Keys(v.doubts)) {
		of := v.doubts[sentence]
		which := "workload " + of[0]
		if len(of) > 1 {
			which = fmt.Sprintf("%d workloads", len(of))
		}
		lines = append(lines, fmt.Sprintf("%s %s, unreliable in every measurement: %s", t.paint(yellow, "*"), which,
			plain.Line(sentence)))
	}
	fmt.Fprintln(t.Out, t.Fit(strings.Join(lines, "\n"), 2))
	if l := v.run.Checked; l != nil && judged {
		t.Note("%s", t.Fit(plain.Line(l.String()), 2))
	}
}

// ScoreText describes the mean speed-up over b, which is the contest score only if b is the reference.
func ScoreText(b *event.Baseline, d *event.Done) string {
	of := fmt.Sprintf("%s on %s%s", plain.Line(b.Name), plain.Count(d.Scored, "workload"), Zeroed(d))
	if b.Score() == "contest score" {
		return fmt.Sprintf("contest score: %.3f, the mean speed-up over baseline %s", *d.Score, of)
	}
	return fmt.Sprintf("mean speed-up: %.3f over baseline %s", *d.Score, of)
}

// Tolerance describes when an output element is correct.
func Tolerance(t event.Tolerance) string {
	text := fmt.Sprintf("correct: within %g absolute or %g relative", t.Atol, t.Rtol)
	if t.MatchedRatio > 0 && t.MatchedRatio < 1 {
		text += fmt.Sprintf(", %g %% of the elements", 100*t.MatchedRatio)
	}
	return text
}

// legend explains the figures in the table.
func (v *runView) legend() string {
	text := "latency: " + Latency(v.run.Profile, v.l2, v.timer) + "\n±: half of the 95 % interval of the median"
	if v.emptyNS > 0 {
		text += fmt.Sprintf("\ncopy: time of the roofline copy, a plain copy of as many bytes, over the latency; an "+
			"empty kernel takes %s",
			Micros(v.emptyNS))
	}
	return text
}

// figures returns the figures of a workload without a column. With a baseline they include the fastest call.
func figures(s *event.Samples, baseline bool) string {
	rate := fmt.Sprintf("%.0f GB/s", s.Bandwidth)
	if s.PeakShare > 0 {
		rate += fmt.Sprintf(" (%s of the memory's peak)", Percent(s.PeakShare))
	}
	list := []string{rate}
	if baseline {
		list = append(list, "min "+Micros(float64(s.MinNS)))
	}
	for _, beside := range []struct {
		name string
		*event.Timings
	}{{"warm L2", s.Warm}, {"baseline", s.Baseline}} {
		if beside.Timings != nil {
			list = append(list, fmt.Sprintf("%s %s ± %s", beside.name, Micros(beside.MedianNS), Spread(beside.Interval)))
		}
	}
	if s.CopyNS > 0 {
		list = append(list, "copy "+Micros(s.CopyNS))
	}
	return strings.Join(list, ", ")
}

// Table prints rows as columns on Out. The first row is the heading. align has an l or r for each column, in upper case
// if the column must not be cut or dropped on a narrow terminal. news rates the last cell of a row, from 0: good (1),
// bad (-1) or neutral (0). It may be nil.
func (t *Terminal) Table(align string, rows [][]string, news func(row int) int) {
	if len(rows) > 0 && IsTerminal(t.Out) {
		var lost []string
		if align, rows, lost = fit(align, rows, Width(t.Out)-1); len(lost) > 0 {
			defer t.Note("omitted columns: %s; --json has them", plain.List(lost, "and"))
		}
	}
	widths := cellWidths(align, rows)
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			cell = plain.Line(cell)
			if align[i] == 'r' || align[i] == 'R' {
				cell = left(cell, widths[i])
			} else if i < len(row)-1 {
				cell = pad(cell, widths[i])
			}
			if i == len(row)-1 && n > 0 && news != nil {
				cell = t.News(news(n), cell)
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString("  ")
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = t.paint(bold, text)
		}
		fmt.Fprintln(t.Out, text)
	}
}

func cellWidths(align string, rows [][]string) []int {
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(plain.Line(cell)))
		}
	}
	return widths
}

// fit fits rows into width. It cuts the widest columns of words, to no less than 12, and headings of numbers, to no
// less than 8. Then it drops columns from the right, first those that are the same in all rows, and returns their
// headings in lost. The last column is never dropped. The first and upper-case columns stay whole unless nothing else
// helps.
func fit(align string, rows [][]string, width int) (fitted string, cut [][]string, lost []string) {
	widths := cellWidths(align, rows)
	over := 2*(len(widths)-1) - width
	least := slices.Clone(widths)
	for i, w := range widths {
		over += w
		switch {
		case i > 0 && align[i] == 'l':
			least[i] = min(w, 12)
		case align[i] == 'r':
			least[i] = min(w, max(8, cellWidths(align, rows[1:])[i]))
		}
	}
	narrow := func(least func(i int) int) {
		for ; over > 0; over-- {
			widest := -1
			for i, w := range widths {
				if w > least(i) && (widest < 0 || w > widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				return
			}
			widths[widest]--
		}
	}
	narrow(func(i int) int { return least[i] })
	out := make([]bool, len(align))
	for _, constant := range []bool{true, false} {
		for i := len(align) - 2; i > 0 && over > 0; i-- {
			same := !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != rows[1][i] })
			if strings.ContainsRune("lr", rune(align[i])) && !out[i] && same == constant {
				out[i], over, widths[i] = true, over-widths[i]-2, 0
			}
		}
	}
	narrow(func(int) int { return 8 })
	cut = make([][]string, len(rows))
	for i := range align {
		if out[i] {
			lost = append(lost, rows[0][i])
			continue
		}
		fitted += align[i : i+1]
		for n, row := range rows {
			cut[n] = append(cut[n], plain.Cut(plain.Line(row[i]), widths[i]))
		}
	}
	return fitted, cut, lost
}

// Fit wraps text to the width of Out, if that is a terminal: between words, or after a slash in long words.
// Continuation lines are indented.
func (t *Terminal) Fit(text string, indent int) string {
	if !IsTerminal(t.Out) {
		return text
	}
	return Wrap(text, indent, Width(t.Out)-1)
}

// Wrap breaks the lines of text at width columns, between words or after a slash in long words. Continuation lines are
// indented.
func Wrap(text string, indent, width int) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		rest := []rune(line)
		for len(rest) > width && width > indent {
			part := string(rest[indent:width])
			at := strings.LastIndex(string(rest[indent:width+1]), " ")
			if at <= 0 {
				at = strings.LastIndex(part, "/") + 1
			}
			if at <= 0 {
				at = len(part)
			}
			end := indent + utf8.RuneCountInString(part[:min(at, len(part))])
			lines = append(lines, strings.TrimRight(string(rest[:end]), " "))
			rest = []rune(strings.Repeat(" ", indent) + strings.TrimLeft(string(rest[end:]), " "))
		}
		lines = append(lines, string(rest))
	}
	return strings.Join(lines, "\n")
}

// News colours s green for good news (1), red for bad news (-1), and not at all for 0.
func (t *Terminal) News(news int, s string) string {
	return t.paint([]string{red, "", green}[news+1], s)
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) }

func left(s string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s
}

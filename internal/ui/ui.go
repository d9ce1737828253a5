// Package ui shows a run to a person: a table on stdout, everything else on stderr, a progress bar only where stderr is a
// terminal. It renders events and decides nothing.
package ui

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"fisub/internal/event"
)

// A Terminal is where things are shown.
type Terminal struct {
	Out, Err io.Writer
	Color    bool // ANSI colours on Out and Err
	Quiet    bool // no progress, no notes; errors and the result stay
	Verbose  bool // whole logs
	Wide     bool // the table of a run has the bandwidth too
}

// UseColor decides for mode "auto", "always" or "never": auto colours a terminal unless NO_COLOR is set or TERM is dumb.
func UseColor(mode string, w io.Writer) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(w)
}

// IsTerminal tells whether w is one.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
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

// Note prints a line about progress to Err.
func (t *Terminal) Note(format string, args ...any) {
	if !t.Quiet {
		fmt.Fprintf(t.Err, format+"\n", args...)
	}
}

// Warn prints a warning, and a hint where there is one, to Err.
func (t *Terminal) Warn(text, hint string) {
	fmt.Fprintf(t.Err, "%s %s\n", t.paint(yellow, "warning:"), text)
	if hint != "" {
		fmt.Fprintf(t.Err, "%s %s\n", t.paint(bold, "hint:"), hint)
	}
}

// Error prints an error, which may have several lines, and its hint, to Err.
func (t *Terminal) Error(text, hint string) {
	fmt.Fprintf(t.Err, "%s %s\n", t.paint(red, "fisub:"), text)
	if hint != "" {
		fmt.Fprintf(t.Err, "%s %s\n", t.paint(bold, "hint:"), hint)
	}
}

// Bar returns a progress bar over total steps on Err; nil, which all its methods accept, where there is no terminal.
func (t *Terminal) Bar(total int64, label string, bytes bool) *Bar {
	if t.Quiet || !IsTerminal(t.Err) {
		return nil
	}
	return &Bar{progressbar.NewOptions64(total, progressbar.OptionSetWriter(t.Err), progressbar.OptionSetDescription(label),
		progressbar.OptionShowBytes(bytes), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(50*time.Millisecond))}
}

// A Bar shows progress; a nil Bar shows nothing.
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

// Clear takes the bar off the screen until it moves again.
func (b *Bar) Clear() {
	if b != nil {
		_ = b.bar.Clear()
	}
}

// Finish takes the bar off the screen for good.
func (b *Bar) Finish() {
	if b != nil {
		_ = b.bar.Finish()
		_ = b.bar.Clear()
	}
}

// Run returns a sink that shows a run: rows of a table on Out as the verdicts come, then the totals.
func (t *Terminal) Run() event.Sink {
	v := &runView{t: t}
	return v.event
}

type runView struct {
	t       *Terminal
	run     *event.Run
	bar     *Bar
	axes    []string // columns
	widths  []int    // of the axes
	samples map[string]*event.Samples
	timer   string
	doubts  map[string][]string // workloads by the sentence that says why their timings are in doubt
	l2      string              // "cold", "warm"
	headed  bool
}

func (v *runView) event(e event.Event) error {
	t := v.t
	switch {
	case e.Run != nil:
		v.start(e.Run)
	case e.Type == event.TypeBuilding:
		v.bar.Clear()
		t.Note("building %s for %s", v.run.Solution, Device(v.run.Device))
	case e.Built != nil && e.Built.OK && t.Verbose && e.Built.Log != "":
		t.Note("%s", strings.TrimRight(e.Built.Log, "\n"))
	case e.Built != nil && e.Built.OK && e.Built.Seconds >= 0.5:
		t.Note("built in %.1f s", e.Built.Seconds)
	case e.Started != nil:
		if v.bar == nil {
			v.bar = t.Bar(int64(e.Started.Total), "", false)
		}
		v.bar.Describe(Short(e.Workload))
		v.bar.Set(int64(e.Started.Index - 1))
	case e.Samples != nil:
		v.samples[e.Workload] = e.Samples
		v.timer, v.l2 = e.Samples.Timer, L2(e.Samples.ColdL2)
	case e.Evaluated != nil:
		v.bar.Clear()
		return v.row(e.Workload, e.Evaluated)
	case e.Type == event.TypeFailed:
		v.bar.Clear()
		fmt.Fprintf(t.Err, "%s workload %s: %s\n", t.paint(red, "fisub:"), Printable(e.Workload), Printable(e.Message.Text))
	case e.Finding != nil:
		v.bar.Clear()
		_, err := fmt.Fprintf(t.Out, "          %s %s: %s\n", t.paint(yellow, "finding:"), Printable(e.Finding.Check), Printable(e.Finding.Text))
		return err
	case e.Type == event.TypeWarning:
		v.bar.Clear()
		t.Warn(e.Message.Text, e.Message.Hint)
	case e.Done != nil:
		v.bar.Finish()
		return v.done(e.Done)
	}
	return nil
}

func (v *runView) start(r *event.Run) {
	*v = runView{t: v.t, run: r, samples: map[string]*event.Samples{}, doubts: map[string][]string{}}
	t := v.t
	t.Note("solution   %s", Printable(fmt.Sprintf("%s by %s, %s, %s", r.Solution, r.Author, r.Language, r.ContentHash[:min(8, len(r.ContentHash))])))
	t.Note("definition %s", Printable(fmt.Sprintf("%s, %d workloads of set %s", r.Definition, len(r.Workloads), r.Set)))
	t.Note("device     %s", Device(r.Device))
	if r.Device.Emulated {
		t.Note("           emulated: correctness only, no latency is measured")
	}
	names := map[string]bool{}
	for _, w := range r.Workloads {
		for name := range w.Axes {
			names[name] = true
		}
	}
	for name := range names {
		v.axes = append(v.axes, name)
	}
	sort.Strings(v.axes)
	v.fit()
}

// fit chooses the widths of the axes' columns. Where the line would have 100 columns or more, the longest names are cut, as
// far as the values of the workloads allow.
func (v *runView) fit() {
	room := 99 - len("WORKLOAD") - 2 - statusWidth - 2*(2+errorWidth)
	if !v.run.Device.Emulated {
		room -= 2*(2+timeWidth) + 2 + spreadWidth
		if v.t.Wide {
			room -= 2 + bandwidthWidth
		}
	}
	least := make([]int, len(v.axes))
	v.widths = make([]int, len(v.axes))
	for i, name := range v.axes {
		for _, w := range v.run.Workloads {
			least[i] = max(least[i], len(fmt.Sprint(w.Axes[name])))
		}
		v.widths[i] = max(utf8.RuneCountInString(Printable(name)), least[i])
		least[i] = max(least[i], 4)
		room -= 2 + v.widths[i]
	}
	for ; room < 0; room++ {
		widest := -1
		for i, w := range v.widths {
			if w > least[i] && (widest < 0 || w > v.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		v.widths[widest]--
	}
}

// header is printed above the first row, so that nothing of the build comes between.
func (v *runView) header() error {
	if v.headed {
		return nil
	}
	v.headed = true
	t := v.t
	cols := []string{pad("WORKLOAD", 8)}
	for i, name := range v.axes {
		cols = append(cols, left(Cut(strings.ToUpper(Printable(name)), v.widths[i]), v.widths[i]))
	}
	cols = append(cols, pad("STATUS", statusWidth), left("MAX ABS", errorWidth), left("MAX REL", errorWidth))
	if !v.run.Device.Emulated {
		cols = append(cols, left("MEDIAN", timeWidth), left("±", spreadWidth), left("MIN", timeWidth))
		if t.Wide {
			cols = append(cols, left("GB/S", bandwidthWidth))
		}
	}
	_, err := fmt.Fprintln(t.Out, t.paint(bold, strings.TrimRight(strings.Join(cols, "  "), " ")))
	return err
}

const (
	statusWidth    = len("INCORRECT_NUMERICAL")
	errorWidth     = len("1.00e-07")
	timeWidth      = len("1234.56 us")
	spreadWidth    = len("0.5 %")
	bandwidthWidth = len("4813")
)

func (v *runView) row(uuid string, e *event.Evaluated) error {
	if err := v.header(); err != nil {
		return err
	}
	t := v.t
	cols := []string{pad(Short(uuid), 8)}
	for i, name := range v.axes {
		cols = append(cols, left(fmt.Sprint(e.Axes[name]), v.widths[i]))
	}
	color := green
	if e.Status != "PASSED" {
		color = red
	}
	cols = append(cols, t.paint(color, pad(Printable(e.Status), statusWidth)), left(errorText(e.MaxAbs), errorWidth), left(errorText(e.MaxRel), errorWidth))
	if e.Latency != nil {
		cols = append(cols, left(Micros(*e.Latency*1e6), timeWidth))
		if s := v.samples[uuid]; s != nil {
			cols = append(cols, left(spread(s), spreadWidth), left(Micros(float64(s.MinNS)), timeWidth))
			if t.Wide {
				cols = append(cols, left(fmt.Sprintf("%.0f", s.Bandwidth), bandwidthWidth))
			}
			if len(s.Disturbed) > 0 {
				cols = append(cols, t.paint(yellow, "*"))
			}
			for _, sentence := range s.Disturbed {
				v.doubts[sentence] = append(v.doubts[sentence], Short(uuid))
			}
			for _, w := range s.Warnings {
				t.Warn(fmt.Sprintf("workload %s: %s", Printable(uuid), Printable(w)), "")
			}
		}
	}
	if _, err := fmt.Fprintln(t.Out, strings.TrimRight(strings.Join(cols, "  "), " ")); err != nil {
		return err
	}
	if e.Status == "PASSED" {
		return nil
	}
	lines := []string{e.Detail}
	if log := strings.TrimRight(e.Log, "\n"); log != "" && log != e.Detail {
		all := strings.Split(log, "\n")
		const most = 12
		if len(all) > most && !t.Verbose {
			lines = append(lines, all[:most]...)
			lines = append(lines, fmt.Sprintf("... %d more lines in the run folder, log/%s.log", len(all)-most, uuid))
		} else {
			lines = append(lines, all...)
		}
	}
	for i, line := range lines {
		if line == "" || i > 0 && strings.HasSuffix(line, e.Detail) {
			continue
		}
		if _, err := fmt.Fprintln(t.Out, "          "+t.paint(dim, Printable(line))); err != nil {
			return err
		}
	}
	return nil
}

func (v *runView) done(d *event.Done) error {
	t := v.t
	total := d.Passed + d.Failed + d.Missing
	text := fmt.Sprintf("%d of %d PASSED", d.Passed, total)
	if d.Passed == total {
		text = t.paint(green, text)
	} else {
		text = t.paint(red, text)
	}
	if d.Missing > 0 {
		text += fmt.Sprintf(", %d without a verdict", d.Missing)
	}
	if d.Findings > 0 {
		text += ", " + t.paint(yellow, plural(d.Findings, "finding"))
	}
	text += fmt.Sprintf(" on %s in %.1f s", Device(v.run.Device), d.Seconds)
	if _, err := fmt.Fprintln(t.Out, text); err != nil {
		return err
	}
	if v.timer != "" {
		if _, err := fmt.Fprintln(t.Out, v.legend()); err != nil {
			return err
		}
	}
	for _, sentence := range slices.Sorted(maps.Keys(v.doubts)) {
		of := v.doubts[sentence]
		which := "workload " + of[0]
		if len(of) > 1 {
			which = fmt.Sprintf("%d workloads", len(of))
		}
		if _, err := fmt.Fprintf(t.Out, "%s %s, in doubt however often measured: %s\n", t.paint(yellow, "*"), which, Printable(sentence)); err != nil {
			return err
		}
	}
	return nil
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// legend says what the figures are.
func (v *runView) legend() string {
	p := v.run.Profile
	trials := fmt.Sprint(p.Trials)
	if p.Target > 0 {
		trials = fmt.Sprintf("%d or more", p.Trials)
	}
	return fmt.Sprintf("latency: mean over %s trials of the median of %d calls, %s L2, %s, profile %s\n"+
		"±: half of the 95 %% interval of the median", trials, p.Iterations, v.l2, Printable(v.timer), Printable(p.Name))
}

// spread is half of the interval of the median, in per cent of it.
func spread(s *event.Samples) string {
	half := 50 * s.Interval.Width
	if half >= 9.95 {
		return fmt.Sprintf("%.0f %%", half)
	}
	return fmt.Sprintf("%.1f %%", half)
}

// Device names a device in a line.
func Device(d event.Device) string {
	if d.Emulated {
		return Printable(fmt.Sprintf("emu (%s, %s)", d.Name, d.Toolchain))
	}
	return Printable(fmt.Sprintf("%s:%d (%s, %s, driver %s)", d.Kind, d.Ordinal, d.Name, d.Arch, d.Driver))
}

// Micros gives nanoseconds as microseconds with three significant digits at least.
func Micros(ns float64) string { return fmt.Sprintf("%.2f µs", ns/1e3) }

// Table prints rows in columns on Out, the first one as the heading. align has an l or r for each column. news tells whether
// the last cell of a row, counted from 0, is good news (1), bad news (-1) or neither (0); it may be nil.
func (t *Terminal) Table(align string, rows [][]string, news func(row int) int) error {
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(Printable(cell)))
		}
	}
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			cell = Printable(cell)
			if align[i] == 'r' {
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
		if _, err := fmt.Fprintln(t.Out, text); err != nil {
			return err
		}
	}
	return nil
}

// News colours s as good (1) or bad news (-1), or not at all (0).
func (t *Terminal) News(news int, s string) string {
	return t.paint([]string{red, "", green}[news+1], s)
}

// L2 is the word for the state of the cache before a call.
func L2(cold bool) string {
	if cold {
		return "cold"
	}
	return "warm"
}

// Cut shortens s to n runes, the last of which then is an ellipsis.
func Cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

func errorText(f *event.Float) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.2e", float64(*f))
}

// Short is the beginning of a uuid, which may be any text.
func Short(uuid string) string {
	r := []rune(Printable(uuid))
	return string(r[:min(8, len(r))])
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) }

func left(s string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s
}

// Printable replaces control characters: a log is untrusted and must not move the cursor.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}

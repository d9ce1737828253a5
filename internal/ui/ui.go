// Package ui shows a run to a person: a table on stdout, everything else on stderr, a progress bar only where stderr is a
// terminal. It renders events and decides nothing.
package ui

import (
	"fmt"
	"io"
	"os"
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
	if !t.Color || s == "" {
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
	samples map[string]*event.Samples
	timer   string
	headed  bool
}

func (v *runView) event(e event.Event) error {
	t := v.t
	switch {
	case e.Run != nil:
		v.start(e.Run)
	case e.Type == event.TypeBuilding:
		v.bar.Clear()
		t.Note("building %s for %s", v.run.Solution, deviceText(v.run.Device))
	case e.Built != nil && e.Built.OK && t.Verbose && e.Built.Log != "":
		t.Note("%s", strings.TrimRight(e.Built.Log, "\n"))
	case e.Built != nil && e.Built.OK && e.Built.Seconds >= 0.5:
		t.Note("built in %.1f s", e.Built.Seconds)
	case e.Started != nil:
		if v.bar == nil {
			v.bar = t.Bar(int64(e.Started.Total), "", false)
		}
		v.bar.Describe(short(e.Workload))
		v.bar.Set(int64(e.Started.Index - 1))
	case e.Samples != nil:
		v.samples[e.Workload] = e.Samples
		v.timer = e.Samples.Timer
	case e.Evaluated != nil:
		v.bar.Clear()
		return v.row(e.Workload, e.Evaluated)
	case e.Type == event.TypeFailed:
		v.bar.Clear()
		fmt.Fprintf(t.Err, "%s workload %s: %s\n", t.paint(red, "fisub:"), printable(e.Workload), printable(e.Message.Text))
	case e.Finding != nil:
		v.bar.Clear()
		_, err := fmt.Fprintf(t.Out, "          %s %s: %s\n", t.paint(yellow, "finding:"), printable(e.Finding.Check), printable(e.Finding.Text))
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
	v.run, v.samples = r, map[string]*event.Samples{}
	t := v.t
	t.Note("solution   %s by %s, %s, %s", r.Solution, r.Author, r.Language, r.ContentHash[:min(8, len(r.ContentHash))])
	t.Note("definition %s, %d workloads of set %s", r.Definition, len(r.Workloads), r.Set)
	t.Note("device     %s", deviceText(r.Device))
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
}

// header is printed above the first row, so that nothing of the build comes between.
func (v *runView) header() error {
	if v.headed {
		return nil
	}
	v.headed = true
	t := v.t
	cols := []string{pad("WORKLOAD", 8)}
	for _, name := range v.axes {
		cols = append(cols, strings.ToUpper(name))
	}
	cols = append(cols, pad("STATUS", statusWidth), left("MAX ABS", 9), left("MAX REL", 9))
	if !v.run.Device.Emulated {
		cols = append(cols, left("MEDIAN", 10), left("MIN", 10))
	}
	_, err := fmt.Fprintln(t.Out, t.paint(bold, strings.TrimRight(strings.Join(cols, "  "), " ")))
	return err
}

const statusWidth = len("INCORRECT_NUMERICAL")

func (v *runView) row(uuid string, e *event.Evaluated) error {
	if err := v.header(); err != nil {
		return err
	}
	t := v.t
	cols := []string{pad(short(uuid), 8)}
	for _, name := range v.axes {
		cols = append(cols, left(fmt.Sprint(e.Axes[name]), len(name)))
	}
	color := green
	if e.Status != "PASSED" {
		color = red
	}
	cols = append(cols, t.paint(color, pad(e.Status, statusWidth)), left(errorText(e.MaxAbs), 9), left(errorText(e.MaxRel), 9))
	if e.Latency != nil {
		cols = append(cols, left(Micros(*e.Latency*1e6), 10))
		if s := v.samples[uuid]; s != nil {
			cols = append(cols, left(Micros(float64(s.MinNS)), 10))
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
		if _, err := fmt.Fprintln(t.Out, "          "+t.paint(dim, printable(line))); err != nil {
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
	text += fmt.Sprintf(" on %s in %.1f s", deviceText(v.run.Device), d.Seconds)
	if _, err := fmt.Fprintln(t.Out, text); err != nil {
		return err
	}
	if v.timer != "" {
		p := v.run.Profile
		_, err := fmt.Fprintf(t.Out, "latency: mean over %d trials of the median of %d calls, cold L2, %s, profile %s\n", p.Trials, p.Iterations, v.timer, p.Name)
		return err
	}
	return nil
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func deviceText(d event.Device) string {
	if d.Emulated {
		return fmt.Sprintf("emu (%s, %s)", d.Name, d.Toolchain)
	}
	return fmt.Sprintf("%s:%d (%s, %s, driver %s)", d.Kind, d.Ordinal, d.Name, d.Arch, d.Driver)
}

// Micros gives nanoseconds as microseconds with three significant digits at least.
func Micros(ns float64) string { return fmt.Sprintf("%.2f µs", ns/1e3) }

func errorText(f *event.Float) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.2e", float64(*f))
}

// short is the beginning of a uuid, which may be any text.
func short(uuid string) string {
	r := []rune(printable(uuid))
	return string(r[:min(8, len(r))])
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) }

func left(s string, n int) string {
	return strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s
}

// printable replaces control characters: a log is untrusted and must not move the cursor.
func printable(s string) string {
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

// Package ui shows a run on the terminal: a table on stdout, everything else on stderr, and a progress bar if stderr is
// a terminal. It only renders events.
package ui

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

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

	// Locate, if not nil, replaces source paths in a message with paths that the user knows.
	Locate func(text string) string

	noted map[string]bool // by NoteOnce
	bar   *Bar            // the last one
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

// Watch returns a writer to w and a function that returns the first write error. Most printing code ignores write
// errors, but a lost result is not a success. The writer is a terminal if w is one.
func Watch(w io.Writer) (io.Writer, func() error) {
	o := &output{w: w}
	if f, ok := w.(*os.File); ok {
		return struct {
			*output
			file
		}{o, f}, o.failed
	}
	return o, o.failed
}

type output struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
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

// Moves reports whether bars and other progress can be shown: Err is a terminal, and not a dumb one.
func (t *Terminal) Moves() bool { return !t.Quiet && IsTerminal(t.Err) && os.Getenv("TERM") != "dumb" }

// Passing shows text instead of the last bar, until a call with "" shows the bar again. Nothing else may be printed in
// between. It does nothing if progress cannot be shown.
func (t *Terminal) Passing(text string) {
	if !t.Moves() {
		return
	}
	if text != "" {
		t.bar.Clear()
	}
	fmt.Fprint(t.Err, plain.Passing(text))
	if text == "" && t.bar != nil {
		_ = t.bar.bar.RenderBlank()
	}
}

// Bar returns a progress bar over total steps on Err, or nil, which is a valid *Bar, if progress cannot be shown.
func (t *Terminal) Bar(total int64, label string, bytes bool) *Bar {
	if !t.Moves() {
		return nil
	}
	t.bar = &Bar{progressbar.NewOptions64(total, progressbar.OptionSetWriter(t.Err),
		progressbar.OptionSetDescription(label), progressbar.OptionShowBytes(bytes), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(30), progressbar.OptionThrottle(50*time.Millisecond))}
	return t.bar
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

// Sums is one progress bar for the bytes of several transfers. It is safe for concurrent use.
type Sums struct {
	term        *Terminal
	label       string
	mu          sync.Mutex
	bar         *Bar
	sent, total map[string]int64
	sum         int64
}

// Set records the progress of a transfer.
func (b *Sums) Set(name string, sent, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent[name], b.total[name] = sent, total
	var now, all int64
	for name := range b.total {
		now, all = now+b.sent[name], all+b.total[name]
	}
	if all != b.sum {
		b.bar.Finish()
		b.bar, b.sum = b.term.Bar(all, b.label, true), all
	}
	b.bar.Set(now)
	if now == all {
		b.bar.Finish()
	}
}

// Finish removes the bar from the screen for good.
func (b *Sums) Finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar.Finish()
}

// Sums returns a bar with the given label.
func (t *Terminal) Sums(label string) *Sums {
	return &Sums{term: t, label: label, sent: map[string]int64{}, total: map[string]int64{}}
}

// locate applies t.Locate if it is not nil.
func (t *Terminal) locate(text string) string {
	if t.Locate == nil {
		return text
	}
	return t.Locate(text)
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

// Rate colours s green if rating is good (1), red if it is bad (-1), and not at all if it is neutral (0).
func (t *Terminal) Rate(rating int, s string) string {
	return t.paint([]string{red, "", green}[rating+1], s)
}

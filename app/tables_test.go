package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/internal/ui"
	"fisub/runs"
)

// Tables and facts fit a terminal of 80 columns. Output to a pipe is never cut.
func TestEightyColumns(t *testing.T) {
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("FISUB_CACHE", newCache(t))
	t.Chdir(dir)
	fisub := func(columns int, args ...string) string {
		t.Helper()
		if columns == 0 {
			var out bytes.Buffer
			run(t.Context(), append([]string{"fisub"}, args...), nil, &out, &out, nil)
			return out.String()
		}
		keyboard, tty := newTerminal(t)
		defer keyboard.Close()
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}); err != nil {
			t.Fatal(err)
		}
		read := make(chan string)
		go func() {
			var all []byte
			for buf := make([]byte, 1<<12); ; {
				n, err := keyboard.Read(buf)
				if all = append(all, buf[:n]...); err != nil {
					read <- string(all)
					return
				}
			}
		}()
		run(t.Context(), append([]string{"fisub"}, args...), nil, tty, new(bytes.Buffer), nil)
		tty.Close()
		return regexp.MustCompile("\x1b\\[[0-9;]*m|\r").ReplaceAllString(<-read, "")
	}
	fisub(0, "init", "--definition", "gdn_decode_qk4_v8_d128_k_last", "--author", "me",
		"--name", "a-kernel-whose-name-needs-a-lot-of-room-in-a-table", "p")
	t.Chdir(filepath.Join(dir, "p"))
	for _, name := range []string{"warp-per-row", "triton", "ours"} {
		from := filepath.Join(repo, "docs", "results", "h200-performance", name)
		r, err := runs.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		r.Run.Git = &event.Git{Commit: strings.Repeat("ab", 20), Dirty: true}
		for i := range r.Rows {
			row := &r.Rows[i]
			abs, ms := 1e-7, row.Samples.MedianNS/1e6
			row.Evaluated = eventtest.Verdict{UUID: row.UUID, Status: "PASSED", Axes: row.Axes, MaxAbs: abs, MaxRel: abs,
				Latency: &ms}.Evaluated()
			row.Samples.Disturbed = []string{"another process was on the GPU"}
		}
		r.Done = &event.Done{Passed: len(r.Rows), Seconds: 1}
		var events bytes.Buffer
		stream := event.NewStream(func(e event.Event) error {
			line, err := event.Marshal(e)
			events.Write(line)
			return err
		})
		r.Emit(stream)
		to := filepath.Join(runs.Dir, r.Run.ID)
		err = errors.Join(stream.Err(), os.MkdirAll(to, 0o755))
		if err := errors.Join(err, os.WriteFile(filepath.Join(to, "events.jsonl"), events.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"runs", "runs best", "runs show last", "compare last~1 last", "compare --best last",
		"doctor --no-remote", "check --arch none", "dataset ls -v", "toolchain show"} {
		var whole string
		for _, columns := range []int{0, 80} {
			out := fisub(columns, strings.Fields(args)...)
			for line := range strings.Lines(out) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); columns > 0 && n > columns {
					t.Errorf("%s: %d columns on a terminal of %d: %s", args, n, columns, line)
				}
				if columns == 0 && strings.Contains(line, "…") {
					t.Errorf("%s: cut, though nothing is narrow: %s", args, line)
				}
			}
			if columns == 0 {
				whole = out
			} else if out == "" && whole != "" {
				t.Errorf("%s: nothing on the terminal, and without one\n%s", args, whole)
			}
		}
	}
}

// A progress bar shows the elapsed time, and no second time that would need an explanation.
func TestBarTime(t *testing.T) {
	keyboard, tty := newTerminal(t)
	defer keyboard.Close()
	t.Setenv("TERM", "xterm")
	bar := (&ui.Terminal{Err: tty}).Bar(3, "96825aea", false)
	bar.Set(1)
	buf := make([]byte, 1<<12)
	n, err := keyboard.Read(buf)
	two := regexp.MustCompile(`\[[0-9]+s:`)
	if text := string(buf[:n]); err != nil || !strings.Contains(text, "96825aea") || two.MatchString(text) {
		t.Errorf("got %q, %v", text, err)
	}
	tty.Close()
}

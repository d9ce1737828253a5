package app

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fisub/bench/pyworker"
	"fisub/device/vgpu/vgputest"
	"fisub/internal/longtest"
)

// A step is a command of a page, with the output that the page shows. A line "..." matches any lines, and "..." in a
// line any text. Runs of spaces count as one.
type step struct {
	line    int // line number in the page
	command string
	want    []string
}

// steps returns the commands in a page's code blocks: lines that begin with "$ " and continuation lines that begin
// with "> ".
func steps(page string) (all []step) {
	fresh := false
	n := 0
	for line := range strings.Lines(page) {
		n++
		code, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		switch {
		case !ok:
			fresh = false
		case strings.HasPrefix(code, "$ "):
			all = append(all, step{line: n, command: code[2:]})
			fresh = true
		case fresh && strings.HasPrefix(code, "> "):
			all[len(all)-1].command += "\n" + code[2:]
		case fresh:
			all[len(all)-1].want = append(all[len(all)-1].want, code)
		}
	}
	return all
}

// differs describes where out deviates from the page, or returns "" if it matches.
func differs(want []string, out string) string {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, line := range want {
		if squeeze(line) == "..." {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		parts := strings.Split(squeeze(line), "...")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, `[^\n]*`) + `\n`)
	}
	pattern.WriteString(`\z`)
	var lines strings.Builder
	for line := range strings.Lines(out) {
		lines.WriteString(squeeze(line) + "\n")
	}
	if regexp.MustCompile(pattern.String()).MatchString(lines.String()) {
		return ""
	}
	return fmt.Sprintf("got\n%s\nwant\n%s", lines.String(), strings.Join(want, "\n"))
}

func TestDiffers(t *testing.T) {
	for _, tc := range []struct {
		want []string
		out  string
		same bool
	}{
		{nil, "", true}, {nil, "x\n", false}, {[]string{"a b"}, "a   b\n", true}, {[]string{"a"}, "a\nb\n", false},
		{[]string{"a", "..."}, "a\nb\nc\n", true},
		{[]string{"...", "c"}, "a\nb\nc\n", true}, {[]string{"...", "b"}, "a\nb\nc\n", false},
		{[]string{"in ... s"}, "in 10.6 s\n", true},
		{[]string{"a.c"}, "abc\n", false}, {[]string{"a", "...", "c"}, "a\nc\n", true},
	} {
		if got := differs(tc.want, tc.out) == ""; got != tc.same {
			t.Errorf("%q, %q: got %v, want %v", tc.want, tc.out, got, tc.same)
		}
	}
}

// In an empty folder, on a machine without a GPU, the tutorial's commands print the output that it shows.
func TestTutorial(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "runs on the emulator")
	follow(t, "tutorial.md", nil)
}

// So do those of the page about tasks, in a folder with problems of GPU MODE.
func TestTasksPage(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "runs on the emulator")
	if _, err := pyworker.Command(t.Context(), t.TempDir()); err != nil {
		longtest.Missing(t, "python", err)
	}
	if err := vgputest.Library(); err != nil {
		t.Fatal(err)
	}
	follow(t, "tasks.md", os.DirFS(filepath.Join("testdata", "tasks")))
}

// follow runs the commands of a page in a folder with the given files, and compares their output.
func follow(t *testing.T, name string, files fs.FS) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "gitconfig")
	if err := os.WriteFile(config, []byte("[user]\nname = me\nemail = me@example.com\n[init]\ndefaultBranch = main\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if files != nil {
		if err := os.CopyFS(work, files); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=",
		"GIT_CONFIG_GLOBAL="+config, "GIT_CONFIG_NOSYSTEM=1",
		"CUDA_VISIBLE_DEVICES=", "NO_COLOR=1", "COLUMNS=200")
	status, place := "0", work
	all := steps(string(page))
	if len(all) < 7 {
		t.Fatalf("got %d commands, want a tutorial", len(all))
	}
	for i, s := range all {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		state := filepath.Join(dir, "state")
		cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("(exit %s)\n%s\necho \"$? $PWD\" >%s", status, s.command,
			state))
		cmd.Dir, cmd.Env = place, env
		begin := time.Now()
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("docs/%s:%d: %s: %v\n%s", name, s.line, s.command, err, out)
		}
		t.Logf("%5.1fs %s", time.Since(begin).Seconds(), s.command)
		text, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		status, place, _ = strings.Cut(strings.TrimSpace(string(text)), " ")
		if status != "0" && (i+1 == len(all) || all[i+1].command != "echo $?") {
			t.Fatalf("docs/%s:%d: %s: exit status %s, which the page does not show\n%s", name, s.line, s.command, status, out)
		}
		if d := differs(s.want, string(out)); d != "" {
			t.Errorf("docs/%s:%d: %s: %s", name, s.line, s.command, d)
		}
	}
}

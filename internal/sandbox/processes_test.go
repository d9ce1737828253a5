package sandbox

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tell starts a shell script in its own session and returns its process ID and its lines.
func tell(t *testing.T, script string, args ...string) (pid int, line func() string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	Own(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { End(cmd.Process.Pid); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	return cmd.Process.Pid, func() string { lines.Scan(); return lines.Text() }
}

func TestPause(t *testing.T) {
	pid, line := tell(t, "sleep 600 & echo $!; (while :; do :; done) & while :; do :; done")
	other, _ := strconv.Atoi(line())
	for deadline := time.Now().Add(time.Minute); len(tree(pid)) < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if all := tree(pid); len(all) < 3 {
		t.Fatalf("got %+v, want three processes", all)
	}
	resume := Pause(pid)
	for _, p := range tree(pid) {
		if !p.stopped {
			t.Errorf("%+v runs", p)
		}
	}
	resume()
	deadline := time.Now().Add(time.Minute)
	for _, p := range tree(pid) {
		for p.stopped {
			if p = (tree(p.pid))[0]; time.Now().After(deadline) {
				t.Fatalf("%+v is still stopped", p)
			}
		}
	}
	if syscall.Kill(other, 0) != nil {
		t.Error("a process has ended")
	}
	Pause(pid) // End must work on stopped processes
}

// Processes that replace themselves all the time are stopped too.
func TestPauseForks(t *testing.T) {
	pid, line := tell(t, "f() { (f) & }; echo; f; while :; do (:) & done")
	line()
	Pause(pid)
	before := tree(pid)
	time.Sleep(50 * time.Millisecond)
	for _, p := range tree(pid) {
		if !p.stopped || !slices.ContainsFunc(before, func(q process) bool { return q.pid == p.pid }) {
			t.Errorf("%+v runs, or is new", p)
		}
	}
}

func TestOpeners(t *testing.T) {
	if !comparable {
		t.Log("this kernel has no kcmp")
	}
	testOpeners(t)
	comparable = false
	defer func() { comparable = same(os.Getpid(), 0, os.Getpid(), 0) }()
	testOpeners(t)
}

func testOpeners(t *testing.T) {
	name := filepath.Join(t.TempDir(), "device")
	for _, tt := range []struct {
		script string
		want   bool
		exact  bool // needs kcmp
	}{
		{`exec 3>"$1"; echo; exec sleep 600`, false, false},                          // only the process itself
		{`exec 3>"$1"; (echo; while :; do :; done) & wait`, false, false},            // inherited
		{`exec 3>"$1"; sleep 600 & echo; wait`, false, true},                         // inherited through exec
		{`exec 3>"$1"; (exec 4>&3; exec sleep 600) & echo; wait`, false, true},       // with another number
		{`(exec 3>"$1"; echo; exec sleep 600) & wait`, true, false},                  // only a child
		{`exec 3>"$1"; (exec 4>"$1"; echo; exec sleep 600) & wait`, true, false},     // both
		{`exec 3>"$1"; (exec 3>"$1"; echo; exec sleep 600) & wait`, true, false},     // with the same number
		{`exec 3>"$1"; (exec 3>"$1"; echo; while :; do :; done) & wait`, true, true}, // without a program of its own
		{`(exec 3>"$1.other"; echo; exec sleep 600) & wait`, false, false},           // another file
	} {
		if tt.exact && !comparable {
			continue
		}
		pid, line := tell(t, tt.script, name)
		line()
		found := Openers(pid, "/dev/nothing", name)
		for deadline := time.Now().Add(time.Minute); tt.want && len(found) == 0 && time.Now().Before(deadline); { // before exec
			found = Openers(pid, "/dev/nothing", name)
		}
		if (len(found) > 0) != tt.want || tt.want && !strings.Contains(found[0], " (") {
			t.Errorf("%s: got %v, want one: %t; kcmp: %t", tt.script, found, tt.want, comparable)
		}
	}
}

package confine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fisub/internal/confine"
)

// TestMain becomes a program that is confined to a folder where a test asks for it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CONFINE"); dir != "" {
		err := confine.Exec([]string{dir}, os.Args[1:])
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// script runs a shell script that may write in the folder dir only, which need not exist.
func script(t *testing.T, dir, text string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "sh", "-c", text)
	cmd.Env = append(os.Environ(), "CONFINE="+dir)
	cmd.Dir = filepath.Dir(dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A process that is confined has not root's rights over others, and no program gives them to it.
func TestUnprivileged(t *testing.T) {
	out, err := script(t, filepath.Join(t.TempDir(), "own"), "grep -E '^(CapPrm|CapEff|CapInh|NoNewPrivs)' /proc/self/status")
	if err != nil {
		t.Fatal(err, out)
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		n, err := strconv.ParseUint(value, 16, 64)
		if trace := n&(1<<19|1<<16|1<<21|1<<27) != 0; err != nil || trace || (name == "NoNewPrivs") != (n == 1) {
			t.Errorf("got %s", line)
		}
	}
}

func TestExec(t *testing.T) {
	state, sound := confine.State()
	if !sound {
		t.Skip(state)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "kept"), []byte("kept\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	}()
	t.Setenv("SLEEPER", "/proc/"+strconv.Itoa(sleeper.Process.Pid))
	for _, tc := range []struct {
		text string
		ok   bool
	}{
		{"cat kept", true},
		{"echo new >own/file && mv own/file own/other && rm own/other", true},
		{"echo >/dev/null", true},
		{"echo new >>kept", false},
		{"echo new >file", false},
		{"mkdir folder", false},
		{"rm kept", false},
		{"mv kept own/kept", false},
		{"ln kept own/kept", false},
		{"ln -s ../kept own/link; echo new >own/link", false},
		{"sh -c 'setsid sh -c \"echo new >>kept\"'", false},
		{"readlink $SLEEPER/exe", false},
		{"echo x 1<>$SLEEPER/mem", false},
		{"kill -0 ${SLEEPER#/proc/}", strings.Contains(state, "not signals")},
	} {
		out, err := script(t, filepath.Join(root, "own"), tc.text)
		var exit *exec.ExitError
		if (err == nil) != tc.ok || err != nil && !errors.As(err, &exit) {
			t.Errorf("%s: got %v, %q", tc.text, err, out)
		}
	}
	if kept, err := os.ReadFile(filepath.Join(root, "kept")); err != nil || string(kept) != "kept\n" {
		t.Errorf("kept: got %q, %v", kept, err)
	}
}

package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fisub/internal/longtest"
	"fisub/internal/sandbox"
)

// script runs a shell script in a sandbox that may write only to dir, which need not exist.
func script(t *testing.T, dir, text string) (string, error) {
	t.Helper()
	s := sandbox.Sandbox{Write: []string{dir}}
	cmd := s.Command(t.Context(), "sh", "-c", text)
	cmd.Dir = filepath.Dir(dir)
	out, err := cmd.CombinedOutput()
	if sandbox.Refused(err) {
		t.Fatalf("%s", out)
	}
	return string(out), err
}

// A process in a sandbox, and any program it starts, is without root's capabilities over others.
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

// need skips a test if a restriction is missing on this machine, unless FISUB_TEST_REQUIRE lists it.
func need(t *testing.T, gaps ...string) {
	t.Helper()
	state := sandbox.State()
	for _, gap := range append(gaps, "files") {
		if !slices.ContainsFunc(state.Gaps, func(g string) bool { return strings.HasPrefix(g, gap) }) {
			continue
		}
		longtest.Missing(t, "sandbox", state)
	}
}

func TestFiles(t *testing.T) {
	need(t)
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
	proc := "/proc/" + strconv.Itoa(sleeper.Process.Pid)
	for _, tc := range []struct {
		text string
		ok   bool
	}{
		{"cat kept", true},
		{"echo new >own/file && mv own/file own/other && mkdir own/dir && mv own/other own/dir && rm -r own/dir", true},
		{"echo >/dev/null", true},
		{"echo new >>kept", false},
		{"echo new >file", false},
		{"mkdir folder", false},
		{"rm kept", false},
		{"mv kept own/kept", false},
		{"ln kept own/kept", false},
		{"ln -s ../kept own/link; echo new >own/link", false},
		{"sh -c 'setsid sh -c \"echo new >>kept\"'", false},
		{"echo >/dev/tty", false},
		{"readlink " + proc + "/exe", false},
		{"echo x 1<>" + proc + "/mem", false},
		{"kill -0 " + proc[len("/proc/"):], strings.Contains(sandbox.State().String(), "signals")},
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

// A sandbox with limited reading can read the system's programs but not the user's files.
func TestRead(t *testing.T) {
	need(t)
	root := t.TempDir()
	for _, dir := range []string{"secret", "source", "own"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "file"), []byte(dir+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := sandbox.Sandbox{Write: []string{filepath.Join(root, "own")}, Read: []string{filepath.Join(root, "source")}}
	for text, ok := range map[string]bool{
		"cat source/file own/file":                           true,
		"cp source/file own/copy":                            true,
		"cat secret/file":                                    false,
		"cat /etc/passwd":                                    false,
		"ls secret":                                          false,
		"head -c 1 /dev/zero":                                false,
		"cat /proc/1/environ":                                false,
		"ln -s ../secret/file own/link; cat own/link":        false,
		"echo changed >source/file":                          false,
		"test $(ls own | wc -l) -gt 0 && c++ --version":      true,
		"cat /proc/self/environ >own/env; ! grep HIDDEN own": true,
	} {
		cmd := s.Command(t.Context(), "sh", "-c", text)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); (err == nil) != ok {
			t.Errorf("%s: got %v, %s", text, err, out)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for _, v := range []string{"SSH_AUTH_SOCK", "TMUX", "DBUS_SESSION_BUS_ADDRESS", "SLURM_JOB_ID", "AWS_SECRET_ACCESS_KEY",
		"NVIDIA_API_KEY", "http_proxy", "FISUB_TOKEN", "HF_TOKEN"} {
		t.Setenv(v, "hidden")
	}
	for _, v := range []string{"CUDA_VISIBLE_DEVICES", "PYTHONPATH", "LC_ALL", "SLURM_JOB_GPUS", "TRITON_DEBUG"} {
		t.Setenv(v, "shown")
	}
	s := sandbox.Sandbox{Env: []string{"OWN=shown"}}
	out, err := s.Command(t.Context(), "env").Output()
	if n := strings.Count(string(out), "shown\n"); err != nil || n != 6 || strings.Contains(string(out), "hidden") {
		t.Errorf("got %v and\n%s", err, out)
	}
}

package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/internal/config"
)

func fake(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FISUB_PYTHON", "")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+"/bin")
}

// TestPythonNotRead: if no Python reads the sources, one note says so, and nothing is guessed.
func TestPythonNotRead(t *testing.T) {
	p := load(t, filepath.Join("testdata", "reject", "syntax.txtar"))
	data := p.dataset(t)
	for _, test := range []struct{ name, script, want string }{
		{"none", "", "needs python3"},
		{"old", "echo Python 3.8 or later is needed >&2; exit 1", "exit status 1: Python 3.8 or later is needed"},
		{"ended", "kill -9 $$", "signal: killed"},
		{"no facts", "echo hello", "invalid JSON"},
		{"too much", "exec head -c 70000000 /dev/zero", "python3: "},
	} {
		fake(t, test.script)
		if test.script == "" {
			t.Setenv("PATH", t.TempDir())
		}
		r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: data, Cache: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Findings) != 1 || r.Findings[0].Code != "python-not-read" || r.Findings[0].Severity != Note ||
			!strings.Contains(r.Findings[0].Msg, test.want) {
			t.Errorf("%s: got %v, want a note with %q", test.name, r.Findings, test.want)
		}
	}
}

// TestPythonHangs: a script that does not end is killed with its child processes.
func TestPythonHangs(t *testing.T) {
	number := filepath.Join(t.TempDir(), "pid")
	fake(t, "sleep 600 & echo $! >"+number+"; wait")
	if _, err := python(t.Context(), time.Second)("", nil); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want timeout", err)
	}
	if pid, err := os.ReadFile(number); err == nil { // a slow machine may not have got there
		stat := "/proc/" + strings.TrimSpace(string(pid)) + "/stat"
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if state, err := os.ReadFile(stat); err != nil || strings.Contains(string(state), ") Z ") {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("still there: %s", state)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := load(t, filepath.Join("testdata", "reject", "syntax.txtar"))
	_, err := Submission(ctx, Options{Config: filepath.Join(p.dir, config.Name), Dataset: p.dataset(t), Cache: t.TempDir()})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestCUDAWithoutPython: a submission in CUDA runs no Python, not even for a stray file.
func TestCUDAWithoutPython(t *testing.T) {
	p := load(t, filepath.Join("testdata", "sound", "cuda.txtar"))
	if err := os.WriteFile(filepath.Join(p.dir, "solution", "cuda", "binding.py"), []byte("x = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	data := p.dataset(t)
	t.Setenv("FISUB_PYTHON", "")
	t.Setenv("PATH", t.TempDir())
	r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: data, Cache: t.TempDir()})
	if err != nil || len(r.Findings) > 0 {
		t.Errorf("got %v, %v; want no finding", r.Findings, err)
	}
}

func TestDefinitionFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d.json")
	text := `{"name": "d", "op_type": "demo", "axes": {"n": {"type": "var"}}, "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
		"outputs": {"y": {"shape": ["n"], "dtype": "float32"}}, "reference": "def run(x):\\n    return (x\\n"}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := File(t.Context(), file); err == nil || !strings.HasPrefix(err.Error(), file+": Reference must be valid Python code: ") {
		t.Errorf("got %v, want a fault of the reference", err)
	}
	t.Setenv("FISUB_PYTHON", "")
	t.Setenv("PATH", t.TempDir())
	what, _, err := File(t.Context(), file)
	if want := "definition d; its reference was not checked: needs python3"; what != want || err != nil {
		t.Errorf("got %q, %v; want %q", what, err, want)
	}
}

// TestCompiledWhenCalled: a note says that check does not compile Triton's kernels, how to compile them, and what that
// needs.
func TestCompiledWhenCalled(t *testing.T) {
	p := load(t, filepath.Join("testdata", "sound", "triton.txtar"))
	for _, test := range []struct{ archs, python, hint string }{
		{"sm_100", os.Getenv("FISUB_PYTHON"), "fisub local --device emu --limit 1 compiles and runs them"},
		{"sm_100", "/nowhere/python", "install Python 3.9 or later with torch, or set FISUB_PYTHON to one; then fisub local"},
		{"", "", ""},
	} {
		t.Setenv("FISUB_PYTHON", test.python)
		r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: p.dataset(t),
			Archs: strings.Fields(test.archs)})
		if err != nil {
			t.Fatal(err)
		}
		hint := ""
		for _, f := range r.Findings {
			if f.Severity == Note && f.Code == "compiled-when-called" && f.Path == "" &&
				f.Msg == "not compiled: Triton compiles kernels at the first call" {
				hint = f.Hint
			}
		}
		if !strings.Contains(hint, test.hint) || hint != "" && test.archs == "" {
			t.Errorf("%+v: got %v", test, r.Findings)
		}
	}
}

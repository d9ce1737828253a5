package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/bench/pyworker"
	"fisub/device/vgpu/vgputest"
	"fisub/internal/config"
	"fisub/internal/longtest"
)

// A fake puts a program python3 first on PATH.
func fake(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FISUB_PYTHON", "")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+"/bin")
}

// TestPythonNotRead: where no Python looks at the sources, one note says so, and nothing is guessed.
func TestPythonNotRead(t *testing.T) {
	p := load(t, filepath.Join("testdata", "reject", "syntax.txtar"))
	data := p.dataset(t)
	for _, test := range []struct{ name, script, want string }{
		{"none", "", "needs python3"},
		{"old", "echo Python 3.8 or later is needed >&2; exit 1", "exit status 1: Python 3.8 or later is needed"},
		{"ended", "kill -9 $$", "signal: killed"},
		{"no facts", "echo hello", "no JSON"},
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

// TestPythonHangs: a script that does not end is ended, with the processes that it has started.
func TestPythonHangs(t *testing.T) {
	number := filepath.Join(t.TempDir(), "pid")
	fake(t, "sleep 600 & echo $! >"+number+"; wait")
	if _, err := python(t.Context(), time.Second)("", nil); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v, want no answer", err)
	}
	if pid, err := os.ReadFile(number); err == nil { // a slow machine may not have come to it
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

// TestCUDAWithoutPython: a submission in CUDA asks no Python, not even about a stray file.
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
	if want := "definition d, whose reference was not looked at: needs python3"; what != want || err != nil {
		t.Errorf("got %q, %v; want %q", what, err, want)
	}
}

// TestTriton: Triton compiles for a B200 what a call launches, and what it refuses is told at its place; where there is no
// launch to compile, that is told, and nothing is guessed.
func TestTriton(t *testing.T) {
	longtest.Skip(t, "imports torch, and Triton compiles")
	python, err := pyworker.Find(t.Context())
	if err == nil {
		err = exec.Command(python, "-c", "import triton").Run()
	}
	if err != nil {
		t.Skipf("no Triton: %v", err)
	}
	if err := vgputest.Library(); err != nil {
		t.Fatal(err)
	}
	p := load(t, filepath.Join("testdata", "sound", "triton.txtar"))
	data, root := p.dataset(t), t.TempDir()
	t.Setenv("TRITON_CACHE_DIR", t.TempDir())
	source := filepath.Join(p.dir, "solution", "triton", "kernel.py")
	sound, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const store, launch = "    tl.store(y + at", "    scale_kernel[("
	once := fmt.Sprintf("    open(%q, 'x').close()\n", filepath.Join(t.TempDir(), "called")) + launch
	for _, test := range []struct{ name, old, new, compiled, finding string }{
		{"called once", launch, once, ": scale_kernel, as workload aaaaaaaa launches them", "warning absolute-path kernel.py:16:5 "},
		{"and kept", launch, once, ": scale_kernel, as workload aaaaaaaa launches them", "warning absolute-path kernel.py:16:5 "},
		{"sound", "", "", ": scale_kernel, as workload aaaaaaaa launches them", ""},
		{"in a function that it calls", store, "    inner(x)\n" + store, "",
			"error does-not-compile kernel.py:22:12 CompilationError: AttributeError(\"module 'triton.language' has no attribute 'nothing'\") " +
				"(Triton, sm_100a)\n22 |     return tl.nothing(x)\n   |            ^"},
		{"not of Triton's language", store, "    try:\n        at = at + 1\n    except ValueError:\n        pass\n" + store, "",
			"error does-not-compile kernel.py:11:5 "},
		{"too much shared memory", launch, "    product[(1,)](x, N=256)\n" + launch, "",
			"error does-not-compile kernel.py:16:5 OutOfResources: out of resource: shared memory"},
		{"by ptxas", store, "    tl.inline_asm_elementwise('wgmma.fence.sync.aligned; mov.b32 $0, $1;', '=r,r', [at], tl.int32, False, 1)\n" +
			store, "", "error does-not-compile kernel.py:17:5 ptxas: Instruction 'wgmma.fence' not supported on .target 'sm_100a'; "},
		{"caught", launch, "    try:\n        product[(1,)](x, N=256)\n    except Exception:\n        pass\n" + launch,
			": scale_kernel, as workload aaaaaaaa launches them", ""},
		{"by its results", launch, "    assert y[0] == 1, 'not one'\n" + launch, "",
			"note not-compiled :0:0 kernels of Triton were not compiled: AssertionError: not one"},
		{"refused by its results", launch, "    scale_kernel[(1,)](x, alpha, y, n, BLOCK=SIZE)\n    product[(1,)](x, N=256 if y[0].item() else 1)\n" +
			launch, "", "note not-compiled :0:0 kernels of Triton were not compiled: its call reads what a kernel would compute, and then: kernel.py:17: Out"},
		{"no launch", launch, "    return\n" + launch, "",
			"note not-compiled :0:0 kernels of Triton were not compiled: its call on workload aaaaaaaa launches no kernel"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(string(sound), test.old, test.new, 1) + "\n\n@triton.jit\ndef inner(x):\n    return tl.nothing(x)\n" +
				"\n\n@triton.jit\ndef product(x, N: tl.constexpr):\n    i = tl.arange(0, N)\n    at = x + i[:, None] * N + i[None, :]\n" +
				"    tl.store(at, tl.dot(tl.load(at), tl.load(at)))\n"
			if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			r, err := Submission(t.Context(), Options{Config: filepath.Join(p.dir, config.Name), Dataset: data, Cache: root,
				Archs: []string{"sm_100"}})
			if err != nil {
				t.Fatal(err)
			}
			var findings []string
			for _, f := range r.Findings {
				name := strings.TrimPrefix(f.Path, filepath.Dir(source)+string(filepath.Separator))
				findings = append(findings, fmt.Sprintf("%s %s %s:%d:%d %s\n%s", f.Severity, f.Code, name, f.Line, f.Col, f.Msg, f.Excerpt))
			}
			got := strings.Join(findings, "\n")
			if len(r.Builds) != 1 || !strings.HasSuffix(r.Builds[0].Toolchain, test.compiled) ||
				(r.Builds[0].Toolchain == "") != (test.compiled == "") ||
				(got == "") != (test.finding == "") || !strings.HasPrefix(got, test.finding) {
				t.Errorf("got %+v and\n%s\nwant %q and\n%s", r.Builds, got, test.compiled, test.finding)
			}
		})
	}
}

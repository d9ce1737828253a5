package source

import (
	"reflect"
	"strings"
	"testing"

	"fisub/internal/longtest"
	"fisub/internal/trace"
)

// TestInspectPython checks kernel.py with entry point kernel.py::run, next to util.py and pkg/mod.py.
func TestInspectPython(t *testing.T) {
	tests := []struct {
		name, src string
		dps       bool
		want      []string
	}{
		{"good",
			"import torch\nfrom . import util\nfrom .util import f\nfrom .pkg.mod import g\n\ndef run(x, y, out):\n    pass\n",
			true, nil},
		{"too few", "'''\ndef run(x, y, out): pass\n'''\ndef run(x,\n        y  # no out\n        ):\n  pass", true,
			[]string{
				"error: kernel.py:4:5: expected 3 positional parameters (2 inputs + 1 output), but run takes 2 (take the " +
					"outputs as the last parameters, or set destination_passing_style = false)"}},
		{"too many", "def run(x, y, out, stream): pass", true,
			[]string{
				"error: kernel.py:1:5: expected 3 positional parameters (2 inputs + 1 output), but run takes 4 (the arguments " +
					"are x, y, out)"}},
		{"defaults", "def run(x, y, out=None, block: int = 4, f=lambda a, b: (a, b), *, k=3, **kw): pass", true, nil},
		{"defaults beyond", "def run(x, a=1): pass", true,
			[]string{
				"error: kernel.py:1:5: expected 3 positional parameters (2 inputs + 1 output), but run takes 1 to 2 (the " +
					"arguments are x, y, out)"}},
		{"star", "def run(x: dict[str, int], *args): pass", true, nil},
		{"star too many", "def run(a, b, c, d, *args): pass", true,
			[]string{
				"error: kernel.py:1:5: expected 3 positional parameters (2 inputs + 1 output), but run takes 4 or more (the " +
					"arguments are x, y, out)"}},
		{"positional only", "def run(x, y, /, out): pass", true, nil},
		{"keyword-only", "def run(x, y, out, *, stream): pass", true,
			[]string{
				"error: kernel.py:1:5: run has the keyword-only parameter stream without a default, but calls pass no " +
					"keywords (give it a default)"}},
		{"missing", "def runs(x): pass\nclass A:\n  def run(self): pass\ndef f():\n  def run(x): pass\n", true,
			[]string{`error: kernel.py: no top-level function run (did you mean "kernel.py::runs"?)`}},
		{"assigned", "def f(x): pass\nrun = f\n", true, nil},
		{"imported", "from .util import f as run\n", true, nil},
		{"star import", "from .util import *\n", true, nil},
		{"conditional", "if x:\n  def run(x, y, out): pass\nelse:\n  def run(x): pass\n", true, nil},
		{"last one counts", "def run(x): pass\ndef run(x, y, out): pass\n", true, nil},
		{"async", "async def run(x, y): pass\n", true,
			[]string{
				"error: kernel.py:1:11: entry run is async: " +
					"a call creates a coroutine and runs nothing (write def, without async)"}},
		{"jit", "@triton.autotune(configs=[\n  1], key=[])\n@triton.jit\ndef run(x, y, out): pass\n", true,
			[]string{
				"error: kernel.py:4:5: entry run is a @triton.jit function, which cannot be called without a grid (use a " +
					"Python function that launches it)"}},
		{"jit of another", "@triton.jit\ndef k(x): pass\n@torch.no_grad()\ndef run(x, y, out): pass\n", true, nil},
		{"other decorator", "@wrap\ndef run(x): pass\n", true, nil},
		{"absolute imports",
			"import torch, util as u\ntry:\n    from pkg.mod import f; import util\nexcept E: pass\ndef run(x, y, out):\n    " +
				"import pkg\n\nrun(1, 2, 3)\n", true, []string{
				"error: kernel.py:1:1: absolute import of util, a file of this solution (write from . import util, " +
					"or from .util import ...)",
				"error: kernel.py:6:5: absolute import of pkg, " +
					"a file of this solution (write from . import pkg, or from .pkg import ...)"}},
		{"import by the search path",
			"import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport util\ndef run(x, y, out): pass\n", true, nil},
		{"import of the standard library", "import types\ndef run(x, y, out): pass\n", true, nil},
		{"import with a fallback",
			"try:\n    from . import util\nexcept ImportError:\n    import util\ndef run(x, y, out): pass\n", true, nil},
		{"import in a string", "s = \"\"\"\nimport util\n\"\"\" + f'\\'' \\\n  + 'import util'\ndef run(x, y, out): pass\n",
			true, nil},
		{"value-returning", "def run(x, y) -> torch.Tensor: pass", false, nil},
		{"returns too many", "def run(x, y) -> tuple[torch.Tensor, torch.Tensor]: pass", false,
			[]string{
				"error: kernel.py:1:5: run is annotated to return 2 values, but the definition has 1 output (fix the " +
					"annotation, which the builder reads, or remove it)"}},
		{"returns none", "def run(x, y) -> None: pass", false,
			[]string{
				"error: kernel.py:1:5: run is annotated to return 0 values, but the definition has 1 output (fix the " +
					"annotation, which the builder reads, or remove it)"}},
		{"returns any number", "def run(x, y) -> tuple[int, ...]: pass", false, nil},
		{"destination passing in value style", "def run(x, y, out): pass", false,
			[]string{
				"error: kernel.py:1:5: expected 2 positional parameters (2 inputs, outputs returned), but run takes 3 (return " +
					"the outputs, or set destination_passing_style = true)"}},
		{"BOM", "\ufeff" + "def run(x, y, out): pass", true, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sol := solution(trace.Triton, "kernel.py::run", "kernel.py", test.src, "pkg/mod.py", "x=1", "types.py", "x=1",
				"util.py", "x=1")
			sol.Spec.DestinationPassingStyle = test.dps
			if got := findings(sol, small(), cpython(t)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
	sol := solution(trace.Python, "kernel.py::run", "kernel.py", "@triton.jit\ndef run(x, y, out): pass\n")
	want := []string{"error: kernel.py:2:5: entry run is a @triton.jit function, which cannot be called without a grid " +
		"(use a Python function that launches it)"}
	if got := findings(sol, small(), cpython(t)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestReturnAnnotation: the builder reads any annotation other than tuple[...] as one value.
func TestReturnAnnotation(t *testing.T) {
	longtest.Skip(t, "starts many interpreters")
	const one = "the return annotation of run means one value to the builder, but the definition has 2 outputs"
	for annotation, want := range map[string]string{
		"tuple": one, "Tuple": one, "'tuple[A, B]'": one, "list[A]": one, "typing.List[A]": one, "dict": one, "Any": one,
		"Optional[A]": one, "A | None": one, "Sequence[A]": one, "torch.Tensor": one, "Union[A, B]": one,
		"tuple[A]":    "run is annotated to return 1 value, but the definition has 2 outputs",
		"None":        "run is annotated to return 0 values, but the definition has 2 outputs",
		"tuple[A, B]": "", "typing.Tuple[A, tuple[B, C]]": "", "Pair": "", "tuple[A, ...]": "",
	} {
		for future, want := range map[string]string{"": want, "from __future__ import annotations\n": one} {
			sol := solution(trace.Python, "kernel.py::run", "kernel.py", future+"def run(x, y) -> "+annotation+": pass")
			sol.Spec.DestinationPassingStyle = false
			got := ""
			for _, f := range Inspect(sol, definition("x y", "a b"), cpython(t)) {
				got += f.Msg
			}
			if got != want {
				t.Errorf("%s%s: got %q, want %q", future, annotation, got, want)
			}
		}
	}
}

// TestReach: code that the entry does not reach causes no error.
func TestReach(t *testing.T) {
	const lib = "import vllm\n"
	for _, test := range []struct {
		name, kernel, util string
		want               []string // severity and code of findings, in order of place
	}{
		{"called", lib + "def run(x):\n    return vllm.f(x)\n", "", []string{"error forbidden-library"}},
		{"called through names", lib + "a = vllm.b.c\ndef f(x): return a(x)\ndef run(x): return f(x)\n", "",
			[]string{"error forbidden-library"}},
		{"called by a method", lib + "class A:\n  def f(self): vllm.f()\ndef run(x): A().f()\n", "",
			[]string{"error forbidden-library"}},
		{"called elsewhere", "from .util import g as f\ndef run(x): f(x)\n", lib + "def g(x): vllm.f(x)\ndef h(): pass\n",
			[]string{"error forbidden-library"}},
		{"a module by name", "import importlib\nm = importlib.import_module('vllm')\ndef run(x): m.f(x)\n", "",
			[]string{"error forbidden-library"}},
		{"not called", lib + "def base(x): vllm.f(x)\ndef run(x): pass\n", "", []string{"warning forbidden-library"}},
		{"in main", "def run(x): pass\nif __name__ == '__main__':\n  import vllm\n  vllm.f()\n", "",
			[]string{"warning forbidden-library"}},
		{"not imported", "def run(x): pass\n", lib + "vllm.f()\nimport tvm.ffi\nimport socket\n",
			[]string{"warning forbidden-library", "warning tvm-ffi-module", "note network"}},
		{"loaded by its name", "def run(x): exec(open('util.py').read())\n", "import socket\n", []string{"warning network"}},
		{"headers", "try:\n  import flashinfer\nexcept ImportError:\n  flashinfer = None\n" +
			"def run(x): return flashinfer is not None and flashinfer.__file__\n", "", nil},
		{"a file of one's own", "from . import fla\nimport fla as f\ndef run(x): f.g(x)\n", "", nil},
	} {
		sol := solution(trace.Python, "kernel.py::run", "kernel.py", test.kernel, "util.py", test.util, "fla.py", "")
		var got []string
		for _, f := range Inspect(sol, nil, cpython(t)) {
			got = append(got, string(f.Severity)+" "+f.Code)
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestPythonSyntax: a syntax error is reported at its place in any source.
func TestPythonSyntax(t *testing.T) {
	longtest.Skip(t, "starts many interpreters")
	deep := func(s string, n int) string { return "x = " + strings.Repeat(s, n) + "1\n" }
	for _, test := range []struct {
		name, src string
		line, col int // 0: valid, or not checked
	}{
		{"open bracket", "a = 1\n\tb = 2\n", 2, 0},
		{"outside of a function", "if 1:\n    é = 1; return 2\n", 2, 12},
		{"second line", "é = 1\nx = é = 1 1\n", 2, 0},
		{"NUL", "a = 1\nb = '\x00'\n", 2, 0},
		{"NUL at the end", "a = 1\n\x00", 0, 0},
		{"unknown encoding", "# coding: nonsense\n", 1, 0},
		{"another encoding", "# coding: latin-1\nx = 'é' 1\n", 2, 0},
		{"odd encodings", "# coding: utf-7\n+ADw-\n", 0, 0},
		{"brackets", deep("(", 100_000), 0, 0},
		{"signs", deep("-", 100_000), 0, 0},
		{"sum", deep("1 + ", 100_000), 0, 0},
		{"attributes", "x = a" + strings.Repeat(".b", 50_000) + "()\n", 0, 0},
		{"blocks", strings.Repeat("if a:\n", 1) + strings.Repeat(" if a:\n", 200), 0, 0},
		{"a huge line", "x = '" + strings.Repeat("é", 1<<20) + "' 1\n", 1, 0},
		{"many lines", strings.Repeat("x = a.b(c)\n", 50_000), 0, 0},
		{"carriage returns", "a = 1\rb = = 2\r", 0, 0},
	} {
		sol := solution(trace.Python, "kernel.py::run", "kernel.py", test.src)
		found := Inspect(sol, small(), cpython(t))
		if len(found) == 0 {
			t.Errorf("%s: got nothing", test.name)
		}
		deep := test.name == "signs" || test.name == "attributes"
		if deep && (len(found) == 0 || found[0].Severity != Warning || found[0].Line != 0) {
			t.Errorf("%s: got %s %v, want a warning about the file", test.name, found[0].Severity, found[0])
		}
		for _, f := range found {
			ok := f.Code == "python-syntax" && (f.Severity == Error && f.Line == test.line || test.line == 0) &&
				(f.Col == test.col || test.col == 0)
			if !ok && (test.line > 0 || f.Code != "no-function" && f.Code != "python-not-read") {
				t.Errorf("%s: got %s %v, want a fault at %d:%d", test.name, f.Severity, f, test.line, test.col)
			}
		}
	}
}

// TestNewSyntax: syntax that only a later CPython accepts is not an error.
func TestNewSyntax(t *testing.T) {
	for _, src := range []string{"f'{x['a']}'", "f'{\nx}'", "f'''{x # y\n}'''", "def f[T](x): pass", "type A = int",
		"try: pass\nexcept* E: pass", "x[*a]", "match x:\n  case 1: pass", "with (a as b, c as d): pass",
		"@a[0].b\ndef f(): pass"} {
		sol := solution(trace.Python, "kernel.py::run", "kernel.py", "def run(x, y, out): pass\n"+src+"\n")
		for _, f := range Inspect(sol, small(), cpython(t)) {
			if f.Code != "python-syntax" || f.Severity != Warning {
				t.Errorf("%q: got %s %v, want no error", src, f.Severity, f)
			}
		}
	}
}

// TestFaultOfLaterPython: code that the contest's Python may accept is not an error.
func TestFaultOfLaterPython(t *testing.T) {
	answer := `{"version": "3.9", "files": [{"path": "kernel.py", "reached": true, "error": {"line": 2, "column": 1,
		"text": "invalid syntax", "doubtful": true}, "facts": []}], "entry": null}`
	old := func(string, []byte) ([]byte, error) { return []byte(answer), nil }
	sol := solution(trace.Python, "kernel.py::run", "kernel.py", "match x:\n")
	want := []string{"warning: kernel.py:2:1: not valid Python 3.9: invalid syntax (make sure that Python 3.12, which " +
		"the contest uses, accepts it)"}
	if got := findings(sol, small(), old); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range []string{"", "{", "[]", `{"files": 1}`} {
		answer = bad
		got := Inspect(sol, small(), old)
		if len(got) != 1 || got[0].Code != "python-not-read" || got[0].Severity != Note {
			t.Errorf("%q: got %v, want a note", bad, got)
		}
	}
}

func TestDefinition(t *testing.T) {
	for _, test := range []struct{ reference, constraint, want string }{
		{"def run(x):\n  return x\n", "n > 0", ""},
		{"import torch\n\ndef run(x):\n  return (x\n", "n > 0", "Reference must be valid Python code: |(line 4)"},
		{"\ufeff" + "def run(x): pass", "n > 0", "Reference must be valid Python code: |(line 1)"},
		{"def run(x): pass", "m = 3", "Constraints must be valid Python expressions: |(line 1)"},
	} {
		def := small()
		def.Reference, def.Constraints = test.reference, []string{test.constraint}
		faults, err := Definition(def, cpython(t))
		got := strings.Join(faults, "\n")
		begin, end, _ := strings.Cut(test.want, "|")
		if err != nil || got == "" != (test.want == "") || !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) {
			t.Errorf("%q: got %q, %v; want %q", test.reference, got, err, test.want)
		}
	}
}

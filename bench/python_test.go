package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/pyworker"
	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/event"
	"fisub/internal/longtest"
	"fisub/internal/safetensors"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// needPython skips a test without a Python with torch.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := pyworker.Command(t.Context(), t.TempDir()); err != nil {
		longtest.Missing(t, "python", err)
	}
}

const scaleDefinition = `{"name":"scale","op_type":"test","axes":{"n":{"type":"var"}},
"inputs":{"x":{"shape":["n"],"dtype":"float32"},"c":{"shape":null,"dtype":"float32"}},"outputs":{"y":{"shape":["n"],"dtype":"float32"}},
"reference":"import os\ndef run(x, c):\n    if x.shape[0] == 13:\n        raise ValueError('13 is not for me')\n    if x.shape[0] == 666:\n        os._exit(3)\n    return x * c\n"}`

// A latency that is too short for all inputs is suspicious only if the outputs depend on all of them.
func TestNeeded(t *testing.T) {
	needPython(t)
	const definition = `{"name":"d","op_type":"test","axes":{"n":{"type":"var"},"m":{"type":"var"},"k":{"type":"const","value":1}},
"inputs":{"x":{"shape":["n","m"],"dtype":"float32"}},"outputs":{"y":{"shape":["k","m"],"dtype":"float32"}},
"reference":"def run(x):\n    return EXPRESSION\n"}`
	for expression, want := range map[string]bool{"x.sum(0, keepdim=True)": true, "x[-1:] * 2": false} {
		shared := sharedPython(t, strings.Replace(definition, "EXPRESSION", expression, 1), []map[string]int{{"n": 999, "m": 64}}, nil)
		r, err := newReference(t.Context(), &shared, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.stop()
		in, err := openInputs(t.Context(), &shared, nil, standard, shared.Workloads[0], 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		a := &attempt{runner: &runner{shared: &shared, reference: r}, workload: shared.Workloads[0], loaded: in}
		if in.want, err = a.expected(t.Context(), in.Values); err != nil {
			t.Fatal(err)
		}
		h := &honesty{attempt: a, in: in}
		if got, err := h.needed(t.Context()); err != nil || got != want {
			t.Errorf("%s: got %t, %v, want %t", expression, got, err, want)
		}
	}
}

// runPython runs a Python solution, in destination-passing style if passing is set, on workloads of definition.
// Inputs are random, except for scalars and those in blobs. It returns the evaluations by workload index and the
// texts of failed workloads.
func runPython(t *testing.T, definition, source string, passing bool, axes []map[string]int,
	blobs map[string]*tensor.Tensor) (evaluated map[int]*trace.Evaluation, failed []string, result Result, err error) {
	t.Helper()
	evaluated, failed, _, result, err = findPython(t, definition, source, passing, axes, blobs)
	return evaluated, failed, result, err
}

// findPython is runPython that also returns the findings by workload. failed also has the other warnings.
func findPython(t *testing.T, definition, source string, passing bool, axes []map[string]int,
	blobs map[string]*tensor.Tensor) (evaluated map[int]*trace.Evaluation, failed []string, findings map[string][]string,
	result Result, err error) {
	t.Helper()
	return dumpPython(t, definition, source, passing, axes, blobs, "")
}

// dumpPython is findPython with a folder for the tensors of a workload that does not pass.
func dumpPython(t *testing.T, definition, source string, passing bool, axes []map[string]int,
	blobs map[string]*tensor.Tensor, dump string) (evaluated map[int]*trace.Evaluation, failed []string,
	findings map[string][]string, result Result, err error) {
	t.Helper()
	shared := sharedPython(t, definition, axes, blobs)
	evaluated, findings = map[int]*trace.Evaluation{}, map[string][]string{}
	stream := event.NewStream(func(e event.Event) error {
		switch {
		case e.Evaluated != nil:
			evaluated[e.Evaluated.Index-1] = e.Evaluated.Trace.Evaluation
		case e.Type == event.TypeFailed, e.Type == event.TypeWarning && e.Message != nil:
			failed = append(failed, e.Message.Text)
		case e.Finding != nil:
			findings[e.Workload] = append(findings[e.Workload], e.Finding.Check+": "+e.Finding.Text)
		}
		return nil
	})
	result, err = Run(t.Context(), shared, Entry{Events: stream, Dump: dump,
		Run: described(&shared, &event.Run{Schema: event.Schema, Fisub: "test"}),
		Solution: &trace.Solution{Name: "s", Definition: shared.Definition.Name, Author: "a", Spec: trace.BuildSpec{Language: trace.Python,
			TargetHardware: []string{"cuda"},
			EntryPoint:     "main.py::run", DestinationPassingStyle: passing},
			Sources: []trace.SourceFile{{Path: "main.py", Content: source}}},
	})
	return evaluated, failed, findings, result, err
}

// sharedPython returns the Shared of a findPython run.
func sharedPython(t *testing.T, definition string, axes []map[string]int, blobs map[string]*tensor.Tensor) Shared {
	t.Helper()
	dir := t.TempDir()
	def, _, err := trace.DecodeDefinition([]byte(definition))
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"definitions", "workloads"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "definitions", "d.json"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	inputs := map[string]any{}
	for name, spec := range def.Inputs.All() {
		inputs[name] = map[string]any{"type": "random"}
		if spec.Scalar {
			inputs[name] = map[string]any{"type": "scalar", "value": 2.5}
		}
	}
	var named []safetensors.Named
	for name, blob := range blobs {
		named = append(named, safetensors.Named{Name: name, Tensor: blob})
		inputs[name] = map[string]any{"type": "safetensors", "path": "blob.safetensors", "tensor_key": name}
	}
	if err := safetensors.Write(filepath.Join(dir, "blob.safetensors"), named, nil); err != nil {
		t.Fatal(err)
	}
	var lines []byte
	for i, a := range axes {
		line, err := json.Marshal(map[string]any{"definition": def.Name, "solution": nil, "evaluation": nil,
			"workload": map[string]any{"uuid": fmt.Sprint("workload ", i), "axes": a, "inputs": inputs}})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if err := os.WriteFile(filepath.Join(dir, "workloads", "w.jsonl"), lines, 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := workloads.Open(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, err := data.Workloads(def.Name, "")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile("official", def)
	if err != nil {
		t.Fatal(err)
	}
	profile.Timeout = 30 * time.Second
	return Shared{
		Definition: def, Profile: profile, Workloads: ws, Load: data.Load, DeviceKind: "emu",
		Device: device.Options{CacheDir: t.TempDir()},
		Worker: worker.Command{MemoryLimit: 8 << 30},
	}
}

const mixDefinition = `{"name":"mix","op_type":"t","axes":{"n":{"type":"var"},"k":{"type":"const","value":8}},
"inputs":{"x":{"shape":["n","k"],"dtype":"float32"},"w":{"shape":["k"],"dtype":"float32"}},
"outputs":{"y":{"shape":["n","k"],"dtype":"float32"},"total":{"shape":["n"],"dtype":"float32"}},
"reference":"def run(x, w):\n    y = x * w\n    return y, y.sum(-1)\n"}`

// On the CPU a process can keep results as on a GPU. The first workload therefore gets the same checks, the others
// only those that make no call.
func TestPythonFindings(t *testing.T) {
	needPython(t)
	const (
		head    = "import torch\nkept, calls, first = {}, [], []\ndef work(x, w):\n    y = x * w\n    return y, y.sum(-1)\n"
		returns = head + "def run(x, w):\n"
		passes  = head + "def run(x, w, y, total):\n    def give(a, b):\n        y.copy_(a)\n        total.copy_(b)\n"
	)
	for _, tc := range []struct {
		name    string
		source  string
		passing bool
		want    []string // of the first workload
		again   []string // of the second; nil if a drawn change decides, or without any
	}{
		{"keeps its output tensors",
			returns +
				"    y, total = kept.setdefault(x.shape, work(x, w))\n    y.copy_(x * w)\n    total.copy_(y.sum(-1))\n    " +
				"return y, total\n", false, nil, nil},
		{"by content", passes + "    give(*kept.setdefault((tuple(x[0, :2].tolist()), x.shape[0]), work(x, w)))\n", true,
			[]string{"cached-by-"}, nil},
		{"the first call's tensors",
			passes +
				"    calls.append(0)\n    if len(calls) == 4:\n        first.extend((x, w, y, total))\n    if len(calls) >= " +
				"4:\n        x, w, y, total = first\n    y.copy_(x * w)\n    total.copy_(y.sum(-1))\n", true,
			[]string{"cached-by-pointer: at other addresses, unwritten outputs: y[0 0] is NaN"}, nil},
		{"returns less later",
			returns +
				"    calls.append(0)\n    y, total = work(x, w)\n    return (y, total) if len(calls) < 5 else (y, " +
				"total.double())\n", false,
			[]string{"wrong-result: with one element of w changed: total: dtype float64, expected float32"}, nil},
	} {
		evaluated, other, findings, result, err := findPython(t, mixDefinition, tc.source, tc.passing,
			[]map[string]int{{"n": 3}, {"n": 5}}, nil)
		if err != nil || len(other) > 0 || len(evaluated) != 2 || evaluated[0].Status != trace.Passed {
			t.Errorf("%s: got %+v, failed %q, error %v", tc.name, evaluated, other, err)
			continue
		}
		got, again := findings["workload 0"], findings["workload 1"]
		if tc.want == nil && len(got)+len(again) > 0 || !startAs(got, tc.want) || tc.again != nil &&
			evaluated[1].Status == trace.Passed && !startAs(again, tc.again) {
			t.Errorf("%s: got %q and %q, want %q and %q", tc.name, got, again, tc.want, tc.again)
		}
		if result.Findings != len(got)+len(again) {
			t.Errorf("%s: got %d findings, want %d", tc.name, result.Findings, len(got)+len(again))
		}
	}
}

// A solution that returns at once on a later call, or for an input at a known address, is detected.
func TestPythonReturnsAtOnce(t *testing.T) {
	needPython(t)
	for name, body := range map[string]string{
		"done":         "    if kept:\n        return\n    kept.append(True)\n    y.copy_(x * c)\n",
		"last pointer": "    if kept[-1:] == [x.data_ptr()]:\n        return\n    kept.append(x.data_ptr())\n    y.copy_(x * c)\n",
		"honest":       "    y.copy_(x * c)\n",
	} {
		evaluated, _, findings, _, err := findPython(t, scaleDefinition, "kept = []\ndef run(x, c, y):\n"+body, true,
			[]map[string]int{{"n": 64}}, nil)
		if err != nil || evaluated[0] == nil {
			t.Fatalf("%s: got %v and %v", name, evaluated, err)
		}
		seen := evaluated[0].Status == trace.IncorrectNumerical ||
			slices.ContainsFunc(findings["workload 0"], func(f string) bool { return strings.HasPrefix(f, skippedWork) })
		if seen != (name != "honest") {
			t.Errorf("%s: got %s and %q", name, evaluated[0].Status, findings)
		}
	}
}

// startAs reports whether texts and starts have the same length and each text has its start as prefix.
func startAs(texts, starts []string) bool {
	return slices.EqualFunc(texts, starts, strings.HasPrefix)
}

// A solution that behaves differently for each n.
const moods = `import os, sys
kept = {}
def run(x, c):
    y, n = x * c, x.shape[0]
    if n == 5: return y[None]
    if n == 6: return y.half()
    if n == 7: return y.double()
    if n == 8: return y, y
    if n == 9: assert False, 'not nine'
    if n == 10: sys.exit('bye')
    if n == 11: os._exit(5)
    if n == 12: print('x' * (8 << 20))
    if n == 14: return kept.setdefault(n, y)
    return y
`

func TestPythonVerdicts(t *testing.T) {
	needPython(t)
	type want struct {
		n      int
		status trace.Status
		log    string
	}
	for _, tc := range []struct {
		name, source string
		passing      bool
		want         []want
	}{
		{"value-returning", moods, false, []want{
			{4, trace.Passed, ""},
			{5, trace.IncorrectShape, "y: shape [1 5], expected [5]"},
			{6, trace.IncorrectDType, "y: dtype float16, expected float32"},
			{7, trace.IncorrectDType, "y: dtype float64, expected float32"},
			{8, trace.RuntimeError, "ValueError: Tuple/list has 2 elements but 1 outputs expected"},
			{9, trace.RuntimeError, "AssertionError: not nine"},
			{10, trace.RuntimeError, "SystemExit: bye"},
			{11, trace.RuntimeError, "Worker process failed unexpectedly: exit status 5"},
			{12, trace.Passed, "[log truncated]"},
			// Each trial has its own inputs, so a kept result is wrong in the second.
			{14, trace.IncorrectNumerical, "elements are wrong"},
			{1000, trace.Passed, ""},
		}},
		{"destination-passing",
			"def run(x, c, y):\n    print('hello')\n    y[x.shape[0] // 6:] = (x * c)[x.shape[0] // 6:]\n", true, []want{
				{4, trace.Passed, "hello\nhello\nhello\n"},
				{6, trace.IncorrectNumerical, "y[0] is NaN"}, // left out
			}},
		{"does not import", "import absent\n", false,
			[]want{{4, trace.CompileError, "from sources: No module named 'absent'"},
				{5, trace.CompileError, "from sources: No module named 'absent'"}}},
	} {
		var axes []map[string]int
		passed := 0
		for _, w := range tc.want {
			axes = append(axes, map[string]int{"n": w.n})
			if w.status == trace.Passed {
				passed++
			}
		}
		got, failed, result, err := runPython(t, scaleDefinition, tc.source, tc.passing, axes, nil)
		if err != nil || len(failed) > 0 || len(got) != len(tc.want) {
			t.Errorf("%s: got %d evaluations, failed %q, error %v", tc.name, len(got), failed, err)
			continue
		}
		for i, want := range tc.want {
			if got[i].Status != want.status || !strings.Contains(got[i].Log, want.log) {
				t.Errorf("%s, n %d: got %s, log %.300q; want %s and %q", tc.name, want.n, got[i].Status, got[i].Log, want.status,
					want.log)
			}
		}
		if result.Passed != passed || result.Failed != len(got)-passed || result.Missing != 0 {
			t.Errorf("%s: got %+v, want %d passed", tc.name, result, passed)
		}
		if !slices.Contains(got[0].Environment.Libs.Keys(), "torch") {
			t.Errorf("%s: libs are %v, want torch among them", tc.name, got[0].Environment.Libs.Keys())
		}
	}
}

// A reference that raises an exception costs only its own workload the verdict.
func TestPythonReferenceFails(t *testing.T) {
	needPython(t)
	got, failed, result, err := runPython(t, scaleDefinition, "def run(x, c):\n    return x * c\n", false,
		[]map[string]int{{"n": 13}, {"n": 666}, {"n": 4}}, nil)
	if err != nil || result != (Result{Passed: 1, Missing: 2}) || got[2] == nil {
		t.Errorf("got %+v, error %v; want the last one passed and two missing", result, err)
	}
	want := []string{"reference of scale: ValueError: 13 is not for me",
		"reference of scale: worker process ended: exit status 3"}
	if !slices.Equal(failed, want) {
		t.Errorf("failed: got %q, want %q", failed, want)
	}
}

func TestNoReference(t *testing.T) {
	t.Setenv("FISUB_PYTHON", filepath.Join(t.TempDir(), "absent"))
	_, _, _, err := runPython(t, scaleDefinition, "def run(x, c):\n    return x * c\n", false, []map[string]int{{"n": 4}},
		nil)
	var we *worker.Error
	if !errors.Is(err, ErrNoReference) || !errors.As(err, &we) || we.Code != "no-python" {
		t.Errorf("got %v, want %v with the code no-python", err, ErrNoReference)
	}
}

const sumDefinition = `{"name":"sum","op_type":"t","axes":{"n":{"type":"var"}},"inputs":{"x":{"shape":["n"],"dtype":"float32"}},
"outputs":{"s":{"shape":[],"dtype":"float32"}},"reference":"def run(x):\n    return x.sum()\n"}`

// The verdicts on the outputs of a Python solution match the official evaluator, flashinfer-bench 0.1.2, on
// a CPU. bench/evaluators/default.py passes outputs (109) to a call under no_grad (110) and judges the passed objects
// afterwards: shape (129), dtype (135), non-finite values (142). Returned values (116) go through
// compile/runnable.py: 112-121, which unwraps a tuple of one and turns an empty one into None, and
// bench/evaluators/utils.py: a tuple or list with the right number of elements (79-84), else one value (87). Tensors
// are moved to the device (76), and other values go into torch.tensor with the output's dtype (77). An exception
// there is RUNTIME_ERROR (119-123); so is one in the comparison, which the worker raises
// (bench/runner/isolated_runner.py:286).
func TestPythonOutputs(t *testing.T) {
	needPython(t)
	type odd struct {
		name, body string
		status     trace.Status
	}
	for _, tc := range []struct {
		name, definition string
		passing          bool
		cases            []odd
	}{
		{"passed", mixDefinition, true, []odd{
			{"rebinds to an input", "x.mul_(w); y.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride()); total.copy_(b)", trace.Passed},
			{"rebinds with data", "y.data = a; total.data = b", trace.Passed},
			{"set_ to a tensor", "y.set_(a); total.copy_(b)", trace.Passed},
			{"strided", "y.set_(a.t().contiguous().t()); total.copy_(b)", trace.Passed},
			{"another shape by set_", "y.set_(a[None]); total.copy_(b)", trace.IncorrectShape},
			{"resized smaller", "y.copy_(a); total.copy_(b); y.resize_(2, 8)", trace.IncorrectShape},
			{"resized and back", "y.resize_(2, 8); y.resize_(len(x), 8); y.copy_(a); total.copy_(b)", trace.Passed},
			{"another dtype", "y.data = a.half(); total.copy_(b)", trace.IncorrectDType},
			{"another device", "y.data = a; total.data = b.to('meta')", trace.RuntimeError},
			{"transposed", "y.copy_(a); total.copy_(b); y.t_()", trace.IncorrectShape},
			{"returned as well as written", "y.copy_(a); total.copy_(b); return a + 1, b", trace.Passed},
			{"returned only", "return a, b", trace.IncorrectNumerical},
			{"unsqueezed", "y.copy_(a); total.copy_(b); total.unsqueeze_(0)", trace.IncorrectShape},
			{"rebinds to the other output", "y.copy_(a); total.set_(y[:, 0])", trace.IncorrectNumerical},
			{"needs no_grad", "p = torch.nn.Parameter(a); p.mul_(1); y.copy_(p); total.copy_(b)", trace.Passed},
		}},
		{"returned", mixDefinition, false, []odd{
			{"None in a list", "return [a, None]", trace.RuntimeError},
			{"None", "return None", trace.RuntimeError},
			{"nothing", "pass", trace.RuntimeError},
			{"a list", "return [a, b]", trace.Passed},
			{"lists of numbers", "return a.tolist(), b.tolist()", trace.Passed},
			{"numpy", "return a.cpu().numpy(), b.cpu().numpy()", trace.Passed},
			{"strided", "return a.t().contiguous().t(), b", trace.Passed},
			{"another device", "return a, b.to('meta')", trace.RuntimeError},
			{"another dtype", "return a.double(), b", trace.IncorrectDType},
			{"expanded", "return a, b[:1].expand(len(x))", trace.IncorrectNumerical},
			{"a dict", "return {'y': a, 'total': b}", trace.RuntimeError},
			{"a generator", "return (t for t in (a, b))", trace.RuntimeError},
			{"one of two", "return a", trace.RuntimeError},
			{"(one,) of two", "return (a,)", trace.RuntimeError},
			{"three", "return a, b, b", trace.RuntimeError},
			{"stacked", "return torch.stack([a, a])", trace.RuntimeError},
			{"an input", "x.mul_(w); return x, x.sum(-1)", trace.Passed},
			{"integers", "return a.round().int(), b", trace.IncorrectDType},
			{"needs grad", "p = a.clone().requires_grad_(); return p * 1, p.sum(-1)", trace.Passed},
			{"needs no_grad", "p = torch.nn.Parameter(a); p.mul_(1); return p, b", trace.Passed},
			{"sparse", "return a.to_sparse(), b", trace.RuntimeError},
			{"a view of complex", "return torch.view_as_complex(torch.stack([a, a*0], -1)), b", trace.IncorrectDType},
			{"conj", "return torch.complex(a, a*0).conj().real, b", trace.Passed},
		}},
		{"returned, 0-d", sumDefinition, false, []odd{
			{"0-d", "return a", trace.Passed},
			{"0-d number", "return float(a)", trace.Passed},
			{"0-d in a list", "return [a]", trace.Passed},
			{"0-d in a tuple", "return (a,)", trace.Passed},
			{"0-d as [1]", "return a[None]", trace.IncorrectShape},
			{"0-d of an int", "return int(a)", trace.IncorrectNumerical},
			{"empty tuple", "return ()", trace.RuntimeError},
			{"None for one", "return None", trace.RuntimeError},
			{"inf", "return a + float('inf')", trace.IncorrectNumerical},
		}},
		{"passed, 0-d", sumDefinition, true, []odd{
			{"0-d passed", "s.copy_(a)", trace.Passed},
			{"0-d passed, made [1]", "s.copy_(a); s.unsqueeze_(0)", trace.IncorrectShape},
		}},
	} {
		arguments, work := "x, w", "    a = x * w\n    b = a.sum(-1)\n"
		if tc.definition == sumDefinition {
			arguments, work = "x", "    a = x.sum()\n"
		}
		if tc.passing {
			arguments += map[string]string{mixDefinition: ", y, total", sumDefinition: ", s"}[tc.definition]
		}
		source := "import torch\ndef run(" + arguments + "):\n" + work
		var axes []map[string]int
		for i, c := range tc.cases {
			body := strings.ReplaceAll(c.body, "; ", "\n        ")
			source += fmt.Sprintf("    if len(x) == %d:\n        %s\n", 20+i, body)
			axes = append(axes, map[string]int{"n": 20 + i})
		}
		got, failed, findings, _, err := findPython(t, tc.definition, source, tc.passing, axes, nil)
		if err != nil || len(failed) > 0 || len(got) != len(tc.cases) {
			t.Errorf("%s: got %d evaluations, failed %q, error %v", tc.name, len(got), failed, err)
			continue
		}
		for i, c := range tc.cases {
			if got[i].Status != c.status {
				t.Errorf("%s: %s: got %s, want %s; log %.600s", tc.name, c.name, got[i].Status, c.status, got[i].Log)
			}
			found := strings.Join(findings[fmt.Sprint("workload ", i)], "\n")
			bound := strings.Contains(c.body, "set_(") || strings.Contains(c.body, ".data =")
			if of := got[i].Status; tc.passing && (of == trace.Passed || of == trace.IncorrectNumerical) &&
				bound != strings.Contains(found, "rebound-output: ") {
				t.Errorf("%s: %s: got findings %q, bound %v", tc.name, c.name, found, bound)
			}
			if want := "rebound output y to the memory of x "; i == 0 && tc.passing && tc.definition == mixDefinition &&
				!strings.Contains(found, want) {
				t.Errorf("%s: %s: got findings %q, want %q", tc.name, c.name, found, want)
			}
		}
	}
}

// The other evaluators, on small definitions with the names that select them.
const (
	lowBitDefinition = `{"name":"moe_fp8_block_scale_small","op_type":"moe","axes":{"n":{"type":"var"},"k":{"type":"const","value":64}},
"inputs":{"x":{"shape":["n","k"],"dtype":"float8_e4m3fn"}},"outputs":{"y":{"shape":["n","k"],"dtype":"bfloat16"}},
"reference":"import torch\ndef run(x):\n    return x.float().to(torch.bfloat16)\n"}`
	attentionDefinition = `{"name":"dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64","op_type":"dsa_paged","axes":{"n":{"type":"var"}},
"inputs":{"x":{"shape":["n","n"],"dtype":"float32"}},"outputs":{"output":{"shape":["n","n"],"dtype":"bfloat16"},"lse":{"shape":["n"],"dtype":"float32"}},
"reference":"import torch\ndef run(x):\n    return torch.softmax(x, -1).to(torch.bfloat16), torch.logsumexp(x, -1)\n"}`
)

func TestPythonEvaluators(t *testing.T) {
	needPython(t)
	n := func(sizes ...int) (axes []map[string]int) {
		for _, n := range sizes {
			axes = append(axes, map[string]int{"n": n})
		}
		return axes
	}
	type want struct {
		status trace.Status
		log    string
	}
	for _, tc := range []struct {
		name, definition, source string
		want                     []want // for n 1, 2, 3
	}{
		{"low bit", lowBitDefinition,
			"import torch\ndef run(x):\n    y = x.float()\n    y[:, :6 * x.shape[0]] += 5\n    return y.to(torch.bfloat16)\n",
			[]want{{trace.Passed, ""}, {trace.IncorrectNumerical, "24 of 128 elements are wrong"}}},
		{"sparse attention", attentionDefinition,
			"import torch\ndef run(x):\n    y, lse = torch.softmax(x, -1).bfloat16(), torch.logsumexp(x, -1)\n" +
				"    return ((y, lse), y, (y, lse + 1), (x, x, x))[x.shape[0] - 1]\n",
			[]want{{trace.Passed, ""}, {trace.Passed, ""}, {trace.IncorrectNumerical, "lse[0] is"},
				{trace.IncorrectShape, "3 outputs, expected 1 or 2"}}},
	} {
		got, failed, _, err := runPython(t, tc.definition, tc.source, false, n(1, 2, 3, 4)[:len(tc.want)], nil)
		if err != nil || len(got) != len(tc.want) {
			t.Errorf("%s: %v, failed %q", tc.name, err, failed)
			continue
		}
		for i, want := range tc.want {
			if got[i].Status != want.status || !strings.Contains(got[i].Log, want.log) {
				t.Errorf("%s, n %d: got %s, log %.300q; want %s and %q", tc.name, i+1, got[i].Status, got[i].Log, want.status,
					want.log)
			}
			if tc.definition == lowBitDefinition {
				if ratio, _ := got[i].Correctness.Extra.Get("matched_ratio"); ratio != 1-float64(6*(i+1))/64 {
					t.Errorf("%s, n %d: matched_ratio is %v", tc.name, i+1, ratio)
				}
			}
		}
	}
}

// If a later call gives the device no work and the first one did, the official timing fails even with right outputs.
func TestPythonIdle(t *testing.T) {
	needPython(t)
	x := tensor.New(tensor.Float32, 3)
	x.WriteFloat64s([]float64{1, -2, 3}, 0)
	blobs := map[string]*tensor.Tensor{"x": x}
	for _, tc := range []struct {
		name, source string
		passing      bool
		want         trace.Status
	}{
		{"keeps its result", "kept = []\ndef run(x, c):\n    if not kept:\n        kept.append(x * c)\n    return kept[0]\n",
			false, trace.RuntimeError},
		{"looks and keeps its result", "kept = []\ndef run(x, c):\n    y = x.view(-1).detach().contiguous()[:]\n" +
			"    assert y.is_cuda and y.shape == x.shape and y.data_ptr()\n    torch.empty_like(x)\n" +
			"    if not kept:\n        kept.append(x * c)\n    return kept[0]\n", false, trace.RuntimeError},
		{"returns at once", "kept = []\ndef run(x, c, y):\n    if not kept:\n        kept.append(y.copy_(x * c))\n", true,
			trace.IncorrectNumerical},
		{"copies only", "kept = []\ndef run(x, c, y):\n    if not kept:\n        kept.append(x * c)\n    y.copy_(x.mul(c))\n", true,
			trace.Passed},
		{"its own memory", "def run(x, c):\n    return x.mul_(c)\n", false, trace.Passed},
	} {
		evaluated, failed, findings, _, err := findPython(t, scaleDefinition, "import torch\n"+tc.source, tc.passing,
			[]map[string]int{{"n": 3}}, blobs)
		if err != nil || evaluated[0] == nil {
			t.Fatalf("%s: got %v, %q and %v", tc.name, evaluated, failed, err)
		}
		idle := strings.Contains(evaluated[0].Log, "nothing was launched, copied or set")
		if evaluated[0].Status != tc.want || idle != (tc.want == trace.RuntimeError) {
			t.Errorf("%s: got %s, %q and %q", tc.name, evaluated[0].Status, evaluated[0].Log, findings)
		}
	}
}

package workloads_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/internal/trace"
	"fisub/workloads"
)

const dialects = "../internal/trace/testdata/dialects"

// python runs scripts of Import, or skips the test.
func python(t *testing.T) workloads.Python {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	return func(script string, stdin []byte) ([]byte, error) {
		cmd := exec.Command(path, "-I", "-S", "-c", script)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), os.Stderr
		return cmd.Output()
	}
}

// notes returns the notes of an import, without the folder.
func notes(im *workloads.Imported, root string) string {
	var lines []string
	for _, n := range im.Notes {
		name, _ := filepath.Rel(root, n.File)
		lines = append(lines, name+": "+n.Text)
	}
	return strings.Join(lines, "\n")
}

func TestImport(t *testing.T) {
	dst := t.TempDir()
	im, err := workloads.Import(dialects, dst, python(t))
	if err != nil {
		t.Fatal(err)
	}
	got := notes(im, dialects)
	for _, want := range []string{
		`fi_trace/fused_add_rmsnorm_h5120.json: the output residual, an input changed in place, is renamed to residual_out`,
		"fi_trace/fused_add_rmsnorm_h5120.json: the output output becomes a separate output: " +
			"its param input is not an input",
		"fi_trace/gdn_fused_decode_h5120_v48_d128.json: its reference has no run: added one that calls " +
			"_gdn_fused_decode_reference with the inputs by name",
		`fi_trace/gqa_paged_decode_h32_kv8_d128_ps16.json: left out: its reference needs kv_indices, which is no input`,
		`fi_trace/recurrent_kda_q8_v16_d128.json: left out: reference: Field required`,
		`fi_trace/xqa_mla_h1_ckv128_kpe1_ps64.json: left out: semaphores has dtype uint32, which the format does not support`,
		`sol-execbench/flux_rope.json: the axis half_head_dim, attention_head_dim // 2, becomes const 64`,
	} {
		if !strings.Contains(got, want+"\n") && !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant %s", got, want)
		}
	}
	// No note, no change.
	unchanged := filepath.Join(dialects, "flashinfer-trace/top_k_sampling_from_probs_v100352.json")
	want, err := os.ReadFile(unchanged)
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadFile(filepath.Join(dst, "definitions/sampling", filepath.Base(unchanged)))
	if err != nil || !bytes.Equal(there, want) || strings.Contains(got, filepath.Base(unchanged)) {
		t.Errorf("%v, got\n%s", err, there)
	}
	data, err := workloads.Open(dst, t.TempDir())
	if err != nil || len(data.Definitions()) != im.Definitions || im.Definitions != 9 {
		t.Errorf("got %d definitions, %v in the dataset, %v", im.Definitions, data.Definitions(), err)
	}
	def, err := data.Definition("gdn_fused_decode_h5120_v48_d128")
	if err != nil {
		t.Fatal(err)
	}
	state, _ := def.Outputs.Get("ssm_state_out")
	if _, out := def.Inputs.Get("out"); state.Param != "ssm_state" || out || !strings.Contains(def.Reference, "scale=scale") {
		t.Errorf("got param %q, input out %v", state.Param, out)
	}
	if _, err := workloads.Import(dialects, dst, python(t)); err != nil {
		t.Errorf("the same once more: %v", err)
	}
}

// A problem of SOL-ExecBench: an axis derived from a var one, inputs from code, a tolerance, a file.
func TestImportProblem(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("p/definition.json", `{"name":"p","op_type":"o","hf_id":"m","axes":{"n":{"type":"var"},`+
		`"m":{"type":"expr","expression":"2*n+1"}},"inputs":{"x":{"shape":["n","3"],"dtype":"float32"},`+
		`"y":{"shape":["m"],"dtype":"int32"}},"outputs":{"z":{"shape":["m"],"dtype":"float32"}},`+
		`"custom_inputs_entrypoint":"make","reference":"def make():\n  pass\ndef run(x, y):\n  return y\n"}`)
	line := func(uuid, y, more string) string {
		return `{"uuid":"` + uuid + `","axes":{"n":4},"inputs":{"x":{"type":"random"},"y":` + y + "}" + more + "}\n"
	}
	file := func(path string) string { return `{"type":"safetensors","path":"` + path + `","tensor_key":"y"}` }
	write("p/blob/y.safetensors", "y")
	write("p/workload.jsonl", line("a", file("blob/y.safetensors"), "")+line("b", `{"type":"custom"}`, "")+
		line("c", `{"type":"random"}`, `,"tolerance":{"max_atol":1}`)+line("d", file("blob/no"), "")+
		line("e", file("../q"), "")+line("f", `{"type":"custom"}`, ""))
	im, err := workloads.Import(filepath.Join(src, "p/definition.json"), dst, python(t))
	if err != nil {
		t.Fatal(err)
	}
	want := `p/definition.json: the size 3 in a shape becomes an axis of that name
p/definition.json: the axis m, 2*n+1, becomes var, with its size in each workload
p/workload.jsonl: its tolerance is ignored: the contest's rule applies
p/workload.jsonl: left out: input y: missing file
p/workload.jsonl: left out: input y: ../q is outside the dataset`
	if got := notes(im, src); got != want || im.Workloads != 4 {
		t.Errorf("got %d workloads\n%s\nwant\n%s", im.Workloads, got, want)
	}
	data, err := workloads.Open(dst, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, err := data.Workloads("p", "")
	if err != nil || len(ws) != 4 {
		t.Fatalf("got %d workloads, %v", len(ws), err)
	}
	if m, _ := ws[0].Axes.Get("m"); m != 9 {
		t.Errorf("got m %d", m)
	}
	if _, err := os.Stat(filepath.Join(dst, "blob/y.safetensors")); err != nil {
		t.Error(err)
	}
	def, _ := data.Definition("p")
	if in, err := data.Load(t.Context(), def, ws[2], 0); err != nil {
		t.Error(err)
	} else {
		in.Close()
	}
	// The function of a custom input exists.
	def.CustomInputs = ""
	got, err := data.Verify(t.Context(), def, ws[1:2])
	if err != nil || len(got[0].Faults) != 1 || !strings.Contains(got[0].Faults[0].Error(), "'y' is custom, but") {
		t.Errorf("got %v, %v", got, err)
	}
	def.CustomInputs = "make"
	// Nothing is written over other content.
	write("p/definition.json", strings.Replace(string(def.JSON(trace.Compact)), "return y", "return x", 1))
	write("p/other/definition.json", strings.Replace(string(def.JSON(trace.Compact)), `"name":"p"`, `"name":"q"`, 1))
	if _, err := workloads.Import(src, dst, python(t)); err == nil || !strings.Contains(err.Error(), "p.json: exists with other content") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dst, "definitions/o/q.json")); err == nil {
		t.Error("q was written")
	}
}

// importOne imports a definition with a reference and axes given by exprs, over n = 7 and h_2 = 128.
func importOne(t *testing.T, exprs []string, reference string) *workloads.Imported {
	t.Helper()
	axes := `"n":{"type":"const","value":7},"h_2":{"type":"const","value":128}`
	for i, expr := range exprs {
		axes += fmt.Sprintf(`,"a%d":{"type":"expr","expression":%q}`, i, expr)
	}
	file := filepath.Join(t.TempDir(), "d.json")
	text := fmt.Sprintf(`{"name":"d","op_type":"o","axes":{%s},"inputs":{"x":{"shape":["n"],"dtype":"int32"},"y":{"shape":["n"],`+
		`"dtype":"int32"}},"outputs":{"z":{"shape":["n"],"dtype":"int32"}},"reference":%q}`, axes, reference)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	im, err := workloads.Import(file, filepath.Join(t.TempDir(), "out"), python(t))
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// Expressions are evaluated as in Python, but exactly. Other code, other results and long computations are faults.
func TestImportSizes(t *testing.T) {
	const run = "def run(x, y):\n  return x\n"
	sizes := map[string]int{"h_2 // 2": 64, "n*h_2+1": 897, "-n // 2 + 5": 1, "-7 % 3": 2, "2**3**2": 512, "-2**2 + 5": 1,
		"(n + 1) / 2": 4, "h_2 * 0.5": 64, "2 ** -1 * 4": 2, " ( ( n ) ) ": 7, "n - -n": 14, "2147483647": 1<<31 - 1}
	exprs := slices.Sorted(maps.Keys(sizes))
	im := importOne(t, exprs, run)
	for i, expr := range exprs {
		want := fmt.Sprintf("the axis a%d, %s, becomes const %d", i, expr, sizes[expr])
		if !slices.ContainsFunc(im.Notes, func(n workloads.Note) bool { return n.Text == want }) {
			t.Errorf("got %v, want %s", im.Notes, want)
		}
	}
	faults := map[string]string{"n / 2": "7/2 is not a size", "n - 8": "-1 is not a size", "n // 0": "division by zero",
		"9**9**9": "exponent", "(n": "", "n n": "", "f(n)": "it is not arithmetic on axes", "n.real": "it is not arithmetic on axes",
		"2147483648": "is not a size", "0 ** -1": "division by zero", "(((9**63)**63)**63)**63": "more than 128 bits",
		strings.Repeat("(", 2000): "more than 1000 bytes", "1e999": "", "n if n else 1": "it is not arithmetic on axes"}
	exprs = slices.Sorted(maps.Keys(faults))
	im = importOne(t, exprs, run)
	for i, expr := range exprs {
		want := fmt.Sprintf("left out: the axis a%d: expression", i)
		if !slices.ContainsFunc(im.Notes, func(n workloads.Note) bool {
			return strings.HasPrefix(n.Text, want) && strings.Contains(n.Text, faults[expr])
		}) {
			t.Errorf("%s: got %v, want %s ... %s", expr, im.Notes, want, faults[expr])
		}
	}
	if im.Definitions != 0 {
		t.Error("it was imported")
	}
}

// A reference without run gets one that passes the inputs to its last function.
func TestImportReference(t *testing.T) {
	for reference, want := range map[string]string{
		"def f(x): pass\ndef g(y, *, k=(1, 2), **more): pass\n": "added one that calls g with",
		"def f(x, z): pass\n":    "its reference needs z, which is no input",
		"def f(x, *, z): pass\n": "its reference needs z, which is no input",
		"def f(x, /): pass\n":    "its reference needs x by position",
		"def f(x:\n":             "its reference is not valid Python",
	} {
		im := importOne(t, nil, reference)
		if len(im.Notes) != 1 || !strings.Contains(im.Notes[0].Text, want) {
			t.Errorf("%s: got %+v, want %q", reference, im, want)
		}
	}
}

package workloads_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/trace"
	"fisub/workloads"
)

const dialects = "../internal/trace/testdata/dialects"

// notes are those of an import, without the folder.
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
	im, err := workloads.Import(dialects, dst)
	if err != nil {
		t.Fatal(err)
	}
	got := notes(im, dialects)
	for _, want := range []string{
		`fi_trace/fused_add_rmsnorm_h5120.json: the output residual, an input changed in place, is residual_out here`,
		`fi_trace/fused_add_rmsnorm_h5120.json: the output output is one of its own here: input, which it is said to be, ` +
			`is no input`,
		`fi_trace/gdn_fused_decode_h5120_v48_d128.json: its reference has no run: one is added that calls ` +
			`_gdn_fused_decode_reference with the inputs by name`,
		`fi_trace/gqa_paged_decode_h32_kv8_d128_ps16.json: left out: its reference needs kv_indices, which is no input`,
		`fi_trace/recurrent_kda_q8_v16_d128.json: left out: reference: Field required`,
		`fi_trace/xqa_mla_h1_ckv128_kpe1_ps64.json: left out: semaphores has dtype uint32, which the format lacks`,
		`sol-execbench/flux_rope.json: the axis half_head_dim, attention_head_dim // 2, is const 64 here`,
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
	if _, err := workloads.Import(dialects, dst); err != nil {
		t.Errorf("the same once more: %v", err)
	}
}

// A problem of SOL-ExecBench: an axis that follows from a var one, inputs from code, a tolerance, a file.
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
	im, err := workloads.Import(filepath.Join(src, "p/definition.json"), dst)
	if err != nil {
		t.Fatal(err)
	}
	want := `p/definition.json: the size 3 in a shape is an axis of that name here
p/definition.json: the axis m, 2*n+1, is var here, with its size in each workload
p/workload.jsonl: left out: input y is made by the definition's function make, which is not run
p/workload.jsonl: its tolerance is not taken: it is judged by the contest's rule
p/workload.jsonl: left out: input y: its file is not there
p/workload.jsonl: left out: input y: ../q leads out of the dataset`
	if got := notes(im, src); got != want || im.Workloads != 2 || im.Notes[2].Workloads != 2 {
		t.Errorf("got %d workloads\n%s\nwant\n%s", im.Workloads, got, want)
	}
	data, err := workloads.Open(dst, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ws, err := data.Workloads("p", "")
	if err != nil || len(ws) != 2 {
		t.Fatalf("got %d workloads, %v", len(ws), err)
	}
	if m, _ := ws[0].Axes.Get("m"); m != 9 {
		t.Errorf("got m %d", m)
	}
	if _, err := os.Stat(filepath.Join(dst, "blob/y.safetensors")); err != nil {
		t.Error(err)
	}
	def, _ := data.Definition("p")
	if in, err := data.Load(t.Context(), def, ws[1], 0); err != nil {
		t.Error(err)
	} else {
		in.Close()
	}
	// Nothing is written where something else is.
	write("p/definition.json", strings.Replace(string(def.JSON(trace.Compact)), "return y", "return x", 1))
	write("p/other/definition.json", strings.Replace(string(def.JSON(trace.Compact)), `"name":"p"`, `"name":"q"`, 1))
	if _, err := workloads.Import(src, dst); err == nil || !strings.Contains(err.Error(), "p.json: there already") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dst, "definitions/o/q.json")); err == nil {
		t.Error("q was written")
	}
}

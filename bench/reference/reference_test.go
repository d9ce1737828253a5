package reference

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
	"fisub/workloads/random"
)

const (
	decode  = "gdn_decode_qk4_v8_d128_k_last"
	prefill = "gdn_prefill_qk4_v8_d128_k_last"
)

// definition makes a gdn definition with var axes: decoding over (batch, time), or prefill over packed tokens.
func definition(t *testing.T, prefill bool) *trace.Definition {
	t.Helper()
	lead, sequences, cu, more := `"B","T"`, `"B"`, "", `"B":{},"T":{},`
	if prefill {
		lead, sequences, cu, more = `"L"`, `"N"`, `"cu_seqlens":{"shape":["C"],"dtype":"int64"},`, `"L":{},"N":{},"C":{},`
	}
	text := strings.NewReplacer("LEAD", lead, "SEQ", sequences, "CU", cu, "MORE",
		more).Replace(`{"name":"g","op_type":"gdn",
		"axes":{MORE"HQ":{},"HV":{},"K":{},"V":{}},
		"inputs":{
			"q":{"shape":[LEAD,"HQ","K"],"dtype":"float32"},"k":{"shape":[LEAD,"HQ","K"],"dtype":"float32"},
			"v":{"shape":[LEAD,"HV","V"],"dtype":"float32"},"state":{"shape":[SEQ,"HV","V","K"],"dtype":"float32"},
			"A_log":{"shape":["HV"],"dtype":"float32"},"a":{"shape":[LEAD,"HV"],"dtype":"float32"},
			"dt_bias":{"shape":["HV"],"dtype":"float32"},"b":{"shape":[LEAD,"HV"],"dtype":"float32"},CU
			"scale":{"shape":null,"dtype":"float32"}},
		"outputs":{"output":{"shape":[LEAD,"HV","V"],"dtype":"float32"},"new_state":{"shape":[SEQ,"HV","V","K"],"dtype":"float32"}},
		"reference":"def run(): pass"}`)
	def, _, err := trace.DecodeDefinition([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return def
}

func floats(shape []int, xs ...float64) *tensor.Tensor {
	x := tensor.New(tensor.Float32, shape...)
	x.WriteFloat64s(xs, 0)
	return x
}

func normal(name string, shape ...int) *tensor.Tensor {
	x := tensor.New(tensor.Float32, shape...)
	for i := range x.Len() {
		x.WriteFloat64s([]float64{random.New(name).Normal(i)}, i)
	}
	return x
}

func args(def *trace.Definition, values map[string]any) []workloads.Input {
	var in []workloads.Input
	for name := range def.Inputs.All() {
		v := workloads.Input{Name: name}
		switch x := values[name].(type) {
		case *tensor.Tensor:
			v.Tensor = x
		case float64:
			v.Scalar = &trace.Scalar{Kind: trace.FloatScalar, Float: x}
		}
		in = append(in, v)
	}
	return in
}

func run(t *testing.T, def *trace.Definition, values map[string]any) (output, newState []float32) {
	t.Helper()
	out, err := Run(t.Context(), def, args(def, values))
	if err != nil {
		t.Fatal(err)
	}
	return float32s(out[0]), float32s(out[1])
}

func TestStep(t *testing.T) {
	s, out := []float64{1, 2, 3, 4}, make([]float64, 2)
	// Decayed: S = [.5 1; 1.5 2], S k = [.5 1.5], delta = .5 * ([2 1] - [.5 1.5]) = [.75 -.25].
	step(out, s, []float64{1, 2}, []float64{1, 0}, []float64{2, 1}, 0.5, 0.5, 2)
	if want := []float64{1.25, 1, 1.25, 2}; !slices.Equal(s, want) {
		t.Errorf("state: got %v, want %v", s, want)
	}
	if want := []float64{6.5, 10.5}; !slices.Equal(out, want) {
		t.Errorf("output: got %v, want %v", out, want)
	}
}

func TestSoftplus(t *testing.T) {
	for _, c := range [][2]float64{{0, math.Ln2}, {20.5, 20.5}, {1000, 1000}, {-1000, 0}, {-40, math.Exp(-40)},
		{20, math.Log1p(math.Exp(20))}} {
		if got := softplus(c[0]); math.Abs(got-c[1]) > 1e-15*math.Abs(c[1]) {
			t.Errorf("softplus %v: got %v, want %v", c[0], got, c[1])
		}
	}
	if got := softplus(math.NaN()); got == got {
		t.Errorf("softplus NaN: got %v", got)
	}
}

// The case of TestStep through Run: A_log = 0 and a + dt_bias = 0 give a decay of 1/2, b = 0 a beta of 1/2.
func TestDecodeByHand(t *testing.T) {
	values := map[string]any{
		"q": floats([]int{1, 1, 1, 2}, 1, 2), "k": floats([]int{1, 1, 1, 2}, 1, 0), "v": floats([]int{1, 1, 1, 2}, 2, 1),
		"state": floats([]int{1, 1, 2, 2}, 1, 2, 3, 4), "A_log": floats([]int{1}, 0), "a": floats([]int{1, 1, 1}, 0.75),
		"dt_bias": floats([]int{1}, -0.75), "b": floats([]int{1, 1, 1}, 0), "scale": 2.0,
	}
	def := definition(t, false)
	for _, c := range []struct {
		name             string
		change           map[string]any
		output, newState []float32
	}{
		{"all given", nil, []float32{6.5, 10.5}, []float32{1.25, 1, 1.25, 2}},
		{"scale 0", map[string]any{"scale": 0.0}, []float32{3.25 / math.Sqrt2, 5.25 / math.Sqrt2},
			[]float32{1.25, 1, 1.25, 2}},
		{"scale None", map[string]any{"scale": nil}, []float32{3.25 / math.Sqrt2, 5.25 / math.Sqrt2},
			[]float32{1.25, 1, 1.25, 2}},
		// delta = .5 * [2 1]
		{"state None", map[string]any{"state": nil}, []float32{2, 1}, []float32{1, 0, 0.5, 0}},
		// softplus 100 is 100, the decay e^-100: as from a zero state
		{"above the threshold", map[string]any{"a": floats([]int{1, 1, 1}, 100.75)}, []float32{2, 1},
			[]float32{1, 0, 0.5, 0}},
		// beta 0: nothing is written
		{"gate shut", map[string]any{"b": floats([]int{1, 1, 1}, -1000)}, []float32{5, 11}, []float32{0.5, 1, 1.5, 2}},
	} {
		changed := map[string]any{}
		for name, v := range values {
			changed[name] = v
		}
		for name, v := range c.change {
			changed[name] = v
		}
		output, newState := run(t, def, changed)
		if !near(output, c.output) || !near(newState, c.newState) {
			t.Errorf("%s: got %v and %v, want %v and %v", c.name, output, newState, c.output, c.newState)
		}
	}
}

// Heads that share scratch memory must not see each other's state, and without tokens the state stays unchanged.
func TestManyHeadsWithoutStateOrTokens(t *testing.T) {
	const batch = 64
	ones := func(shape ...int) *tensor.Tensor {
		x := tensor.New(tensor.Float32, shape...)
		for i := range x.Len() {
			x.WriteFloat32s([]float32{1}, i)
		}
		return x
	}
	def := definition(t, false)
	_, newState := run(t, def, map[string]any{"q": ones(batch, 1, 1, 1), "k": ones(batch, 1, 1, 1),
		"v":     ones(batch, 1, 1, 1),
		"A_log": ones(1), "a": ones(batch, 1, 1), "dt_bias": ones(1), "b": floats([]int{batch, 1, 1}), "scale": 1.0})
	for i, x := range newState {
		if x != 0.5 {
			t.Fatalf("state of sequence %d: got %v, want 0.5", i, x)
		}
	}
	_, newState = run(t, def, map[string]any{"q": ones(2, 0, 1, 1), "k": ones(2, 0, 1, 1), "v": ones(2, 0, 1, 1),
		"state": floats([]int{2, 1, 1, 1}, 3, 4),
		"A_log": ones(1), "a": ones(2, 0, 1), "dt_bias": ones(1), "b": ones(2, 0, 1)})
	if !slices.Equal(newState, []float32{3, 4}) {
		t.Errorf("state after no tokens: got %v, want 3 and 4", newState)
	}
}

func near(got, want []float32) bool {
	return slices.EqualFunc(got, want, func(x, y float32) bool {
		return math.Abs(float64(x-y)) <= 1e-6*math.Max(1,
			math.Abs(float64(y)))
	})
}

func TestRunRejects(t *testing.T) {
	good := func(prefill bool) map[string]any {
		if !prefill {
			return map[string]any{"q": normal("", 2, 1, 1, 4), "k": normal("", 2, 1, 1, 4), "v": normal("", 2, 1, 2, 3),
				"state": normal("", 2, 2, 3, 4),
				"A_log": normal("", 2), "a": normal("", 2, 1, 2), "dt_bias": normal("", 2), "b": normal("", 2, 1, 2)}
		}
		return map[string]any{"q": normal("", 2, 1, 4), "k": normal("", 2, 1, 4), "v": normal("", 2, 2, 3),
			"state": normal("", 1, 2, 3, 4),
			"A_log": normal("", 2), "a": normal("", 2, 2), "dt_bias": normal("", 2), "b": normal("", 2, 2),
			"cu_seqlens": floats([]int{2}, 0, 2)}
	}
	for _, c := range []struct {
		prefill bool
		name    string
		value   any
		want    string // part of the error; "" if none is expected
	}{
		{false, "q", normal("", 2, 1, 1, 4), ""},
		{true, "q", normal("", 2, 1, 4), ""},
		{false, "q", nil, "'q' is not a tensor"},
		{false, "q", normal("", 2, 1, 4), "want 4 axes"},
		{false, "k", normal("", 2, 1, 1, 5), "'k': shape [2 1 1 5], want [2 1 1 4]"},
		{false, "v", normal("", 3, 1, 2, 3), "'v': shape [3 1 2 3], want [2 1 2 3]"},
		{false, "state", normal("", 1, 2, 3, 4), "'state': shape [1 2 3 4], want [2 2 3 4]"},
		{false, "A_log", normal("", 1), "'A_log': shape [1], want [2]"},
		{false, "b", normal("", 2, 2, 2), "'b': shape [2 2 2], want [2 1 2]"},
		{false, "q", normal("", 2, 1, 3, 4), "2 value heads for 3 query heads"},
		{true, "cu_seqlens", floats([]int{0}), "empty"},
		{true, "cu_seqlens", floats([]int{2}, 0, 3), "3 at index 1, with 2 tokens"},
		{true, "cu_seqlens", floats([]int{2}, -1, 2), "-1 at index 0"},
		{true, "cu_seqlens", floats([]int{3}, 0, 2, 1), "1 at index 2"},
		{true, "cu_seqlens", floats([]int{3}, 0, 1, 2), "'state': shape [1 2 3 4], want [2 2 3 4]"},
	} {
		def, values := definition(t, c.prefill), good(c.prefill)
		values[c.name] = c.value
		_, err := Run(t.Context(), def, args(def, values))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("prefill %v, %s = %v: got error %v, want %q", c.prefill, c.name, c.value, err, c.want)
		}
	}
	def := definition(t, false)
	if _, err := Run(t.Context(), def, nil); err == nil {
		t.Error("no inputs: no error")
	}
}

func TestKnows(t *testing.T) {
	def := definition(t, false)
	def.Reference = contestReference(t, decode)
	text := string(def.JSON(trace.Compact))
	for _, c := range []struct{ old, new string }{
		{"", ""},
		{`old_state = g_val * h_state`, `old_state = h_state`},
		{`return output, new_state`, `return new_state, output`},
		{`"op_type":"gdn"`, `"op_type":"mla"`},
		{`"state":{`, `"memory":{`},
		{`"q":{"shape":["B","T","HQ","K"]`, `"q":{"shape":["B","HQ","K"]`},
		{`"new_state":{`, `"final_state":{`},
		{`"scale":{"shape":null`, `"scale":{"shape":[]`},
		{`"output":{"shape":["B","T","HV","V"]`, `"output":{"shape":["B","HV","V"]`},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if c.old != "" && changed == text {
			t.Fatalf("no %s in %s", c.old, text)
		}
		def, _, err := trace.DecodeDefinition([]byte(changed))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := Knows(def), c.old == ""; got != want {
			t.Errorf("%s for %s: got %v, want %v", c.new, c.old, got, want)
		}
	}
}

// The five definitions of the contest and their relatives must be known, and nothing else.
func TestKnowsTheContests(t *testing.T) {
	files, err := filepath.Glob("../../workloads/testdata/contest/definitions/*/*.json")
	if err != nil || len(files) < 13 {
		t.Fatalf("got %v, %v", files, err)
	}
	known := 0
	for _, file := range files {
		def, _, err := trace.ReadDefinition(file)
		if err != nil {
			t.Fatal(err)
		}
		want := !strings.HasPrefix(def.Name, "gdn_mtp")
		if got := Knows(def); got != want {
			t.Errorf("%s: got %v, want %v", def.Name, got, want)
		}
		if want {
			known++
		}
	}
	if known < 5 {
		t.Errorf("%d known definitions among %v", known, files)
	}
}

func TestKnowsTheEmbedded(t *testing.T) {
	d, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range d.Definitions() {
		if def, err := d.Definition(name); err != nil || !Knows(def) {
			t.Errorf("%s: not known: the text has %s, %v", name, textHash(def.Reference), err)
		}
	}
}

// runPython runs references on the cases in argv, JSON descriptions of the inputs, and writes the outputs next to them.
const runPython = `
import json, sys, torch
torch.set_num_threads(1)
types = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64, "int32": torch.int32, "int8": torch.int8,
         "float8_e4m3fn": torch.float8_e4m3fn}
def load(v):
    if v["Path"] == "":
        return v["Scalar"]
    with open(v["Path"], "rb") as f:
        f.seek(v["Offset"])
        data = bytearray(f.read(v["Bytes"]))
    return torch.frombuffer(data, dtype=types[v["DType"]]).reshape(v["Shape"])
for path in sys.argv[1:]:
    case = json.load(open(path))
    for whose, text in case["references"].items():
        space = {}
        exec(compile(text, whose, "exec"), space)
        outputs = space["run"](*[load(v) for v in case["inputs"]])
        for i, x in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            with open("%s.%s.%d" % (path, whose, i), "wb") as f:
                f.write(bytes(x.contiguous().view(-1).view(torch.uint8).tolist()))
`

// The embedded references and the contest's, run in float32 by torch, must agree with Run within the contest's
// tolerance and a good deal closer, on the same inputs.
func TestAgainstPython(t *testing.T) {
	python := os.Getenv("FISUB_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import torch").CombinedOutput(); err != nil {
		longtest.Missing(t, "python", fmt.Errorf("no Python with torch ($FISUB_PYTHON or python3): %w: %s", err, lastLine(out)))
	}
	own, err := workloads.Open("", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, set string
		workloads []int
	}{
		{decode, "contest54", []int{0, 12}},
		{prefill, "", []int{0, 1, 3}},
		{attention, "", []int{0, 1, 3}},
		{indexer, "", []int{0, 3}},
		{moe, "", []int{0, 1}}, // smaller ones
		{"gdn_decode_qk4_v8_d128_v_last", "", []int{1}},
		{"gdn_decode_l2norm_qk4_v8_d128_k_last", "", []int{1}},
		{"gdn_decode_bf16_state_qk4_v8_d128_k_last", "", []int{1}},
		{"gdn_mtp_l2norm_qk4_v8_d128_k_last", "", []int{1}},
		{"gdn_mtp_l2norm_bf16_state_qk4_v8_d128_k_last", "", []int{3}},
		{"gdn_mtp_verify_qk4_v8_d128_k_last", "", []int{0, 4}},
		{"gdn_mtp_verify_bf16_state_qk4_v8_d128_k_last", "", []int{1}},
		{"gdn_mtp_output_qk4_v8_d128_k_last", "", []int{1, 2}},
		{"gdn_mtp_pool_qk4_v8_d128_k_last", "", []int{1, 2}},
		{"gdn_mtp_pool_bf16_state_qk4_v8_d128_k_last", "", []int{1}},
		{"gdn_mtp_split_qk4_v8_d128_k_last", "", []int{1, 2}},
		{"gdn_mtp_scatter_qk4_v8_d128_k_last", "", []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, ours := own, definitionIn(t, own, c.name)
			references := map[string]string{}
			if !strings.HasPrefix(c.name, "gdn_") || c.name == decode || c.name == prefill {
				references["theirs"] = contestReference(t, c.name)
			}
			if c.name == moe {
				d, references["theirs"] = smallDataset(t, ours), smaller.Replace(references["theirs"])
				ours = definitionIn(t, d, c.name)
			}
			references["ours"] = ours.Reference
			ws, err := d.Workloads(c.name, c.set)
			if err != nil {
				t.Fatal(err)
			}
			var chosen []*trace.Workload
			for _, i := range c.workloads {
				chosen = append(chosen, ws[i])
			}
			if strings.HasPrefix(c.name, "gdn_") {
				edges, err := d.Workloads(c.name, workloads.EdgeSet)
				if err != nil {
					t.Fatal(err)
				}
				chosen = append(chosen, edges...)
			}
			comparePython(t, python, d, ours, chosen, references)
		})
	}
}

func definitionIn(t *testing.T, d *workloads.Dataset, name string) *trace.Definition {
	t.Helper()
	def, err := d.Definition(name)
	if err != nil {
		t.Fatal(err)
	}
	return def
}

// contestReference returns the contest's own reference of a definition.
func contestReference(t *testing.T, name string) string {
	files, _ := filepath.Glob("../../workloads/testdata/contest/definitions/*/" + name + ".json")
	if len(files) != 1 {
		t.Fatalf("%s: got %v", name, files)
	}
	def, _, err := trace.ReadDefinition(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return def.Reference
}

// smaller reduces the weights of the mixture of experts from 1.4 GB to 6 MB.
var smaller = strings.NewReplacer("7168", "256", "4096", "512", "2048", "256", `"value": 56`, `"value": 2`,
	`"value": 16`, `"value": 2`,
	"\"num_gemm1_out_blocks\": {\n      \"type\": \"const\",\n      \"value\": 32",
	"\"num_gemm1_out_blocks\": {\n      \"type\": \"const\",\n      \"value\": 4")

// smallDataset returns the definition def with smaller weights and workloads with random inputs.
func smallDataset(t *testing.T, def *trace.Definition) *workloads.Dataset {
	t.Helper()
	root := t.TempDir()
	text := strings.ReplaceAll(smaller.Replace(string(def.JSON(trace.Indent))), smaller.Replace(def.Name), def.Name)
	var lines strings.Builder
	for i, tokens := range []int{1, 40} {
		fmt.Fprintf(&lines,
			`{"definition":%q,"workload":{"uuid":"%d","axes":{"seq_len":%d},"inputs":{"local_expert_offset":{"value":%d},"routed_scaling_factor":{"value":2.5}}}}`+"\n",
			def.Name, i, tokens, 64*i)
	}
	for path, text := range map[string]string{"definitions/d.json": text, "workloads/w.jsonl": lines.String()} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := workloads.Open(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// comparePython compares Run with the references on the workloads. One process runs all references, because torch
// takes long to import.
func comparePython(t *testing.T, python string, d *workloads.Dataset, def *trace.Definition, ws []*trace.Workload,
	references map[string]string) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-c", runPython}
	inputs := map[string][]workloads.Input{} // by path
	names := map[string]string{}
	for i, w := range ws {
		in, err := d.Load(t.Context(), def, w, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		path := filepath.Join(dir, fmt.Sprint("case", i))
		writeCase(t, path, in.Values, references)
		args, inputs[path], names[path] = append(args, path), in.Values, w.UUID
	}
	if out, err := exec.Command(python, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, values := range inputs {
		got, err := Run(t.Context(), def, values)
		if err != nil {
			t.Fatal(err)
		}
		for whose := range references {
			for i, g := range got {
				data, err := os.ReadFile(fmt.Sprintf("%s.%s.%d", path, whose, i))
				if err != nil {
					t.Fatal(err)
				}
				compareOutput(t, fmt.Sprintf("%s, %s, output %d", names[path], whose, i), g,
					&tensor.Tensor{DType: g.DType, Shape: g.Shape, Data: data})
			}
		}
	}
}

// writeCase writes the description that runPython reads.
func writeCase(t *testing.T, path string, inputs []workloads.Input, references map[string]string) {
	t.Helper()
	type value struct {
		Path          string
		Offset, Bytes int
		DType         string
		Shape         []int
		Scalar        any
	}
	var values []value
	for i, v := range inputs {
		switch {
		case v.Tensor != nil && v.Path == "": // random
			name := fmt.Sprintf("%s.in.%d", path, i)
			if err := os.WriteFile(name, v.Tensor.Data, 0o644); err != nil {
				t.Fatal(err)
			}
			values = append(values, value{name, 0, len(v.Tensor.Data), v.Tensor.DType.String(), v.Tensor.Shape, nil})
		case v.Tensor != nil:
			values = append(values, value{v.Path, int(v.Offset), len(v.Tensor.Data), v.Tensor.DType.String(), v.Tensor.Shape,
				nil})
		case v.Scalar.Kind == trace.IntScalar:
			values = append(values, value{Scalar: v.Scalar.Int})
		default:
			values = append(values, value{Scalar: v.Scalar.Float})
		}
	}
	text, err := json.Marshal(map[string]any{"references": references, "inputs": values})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func compareOutput(t *testing.T, name string, got, want *tensor.Tensor) {
	t.Helper()
	if got.DType == tensor.Int32 { // chosen tokens; float32 may order a few differently
		if wrong := different(got.Ints(), want.Ints(), got.Shape[1]); wrong > 2 {
			t.Errorf("%s: %d of %d chosen tokens differ", name, wrong, got.Len())
		}
		return
	}
	var largest float64
	for _, x := range floats64(want, 0, want.Len()) {
		if !math.IsInf(x, 0) {
			largest = max(largest, math.Abs(x))
		}
	}
	tol := tensor.Tolerance{Atol: 1e-6 * max(largest, 1), Rtol: 0.0079} // bfloat16's last place
	if got.DType == tensor.Float32 {
		tol = tensor.Tolerance{Atol: 1e-5, Rtol: 1e-5} // float32 sums
	}
	if c := tensor.Compare(got, want, tol); !c.OK {
		t.Errorf("%s: %+v", name, c)
	}
}

// different counts the elements in rows of got that are missing from the same row of want.
func different(got, want []int, width int) (n int) {
	for row := 0; row < len(got); row += width {
		for _, x := range got[row : row+width] {
			if !slices.Contains(want[row:row+width], x) {
				n++
			}
		}
	}
	return n
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

func BenchmarkRunBatch64(b *testing.B) {
	d, err := workloads.Open("", b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	def, err := d.Definition(decode)
	if err != nil {
		b.Fatal(err)
	}
	ws, err := d.Workloads(decode, "contest54")
	if err != nil {
		b.Fatal(err)
	}
	in, err := d.Load(b.Context(), def, ws[len(ws)-1], 0)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	for b.Loop() {
		if _, err := Run(b.Context(), def, in.Values); err != nil {
			b.Fatal(err)
		}
	}
}

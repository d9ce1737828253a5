package bound

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"fisub/internal/trace"
)

func TestFastest(t *testing.T) {
	for _, tc := range []struct {
		in, out, l2, bandwidth int64
		want                   float64
	}{
		{1050, 500, 500, 1e9, 1000},  // outputs stay in the L2
		{1050, 1025, 500, 1e9, 1500}, // except 525 bytes
		{1050, 0, 0, 2e9, 500},
		{1 << 30, 1 << 30, 0, 0, 0}, // unknown bandwidth
		{0, 0, 0, 1e9, 0},
		{33816576, 33685504, 62914560, 4916736000000, 6550.3}, // a batch of 64 on an H200
	} {
		if got := fastest(Traffic{tc.in, tc.out}, Memory{tc.l2, tc.bandwidth}); math.Abs(got-tc.want) > 0.1 {
			t.Errorf("%+v: got %v", tc, got)
		}
	}
}

func TestCheck(t *testing.T) {
	const want = "0.99 µs for 0.0 MB, but with a cold L2 memory of 1 GB/s needs 1.00 µs"
	if f := Check(990, Traffic{1050, 500}, Memory{500, 1e9}); f == nil || f.Check != TooFast || f.Text != want {
		t.Errorf("got %+v, want %q", f, want)
	}
	if f := Check(1010, Traffic{1050, 500}, Memory{500, 1e9}); f != nil {
		t.Errorf("got %+v", f)
	}
	if f := Check(1, Traffic{1050, 500}, Card("rtx4090")); f != nil {
		t.Errorf("unknown card: got %+v", f)
	}
}

func TestEmpty(t *testing.T) {
	if f := Empty(600, 600); f == nil || f.Check != TooFast || f.Text != "0.60 µs, but an empty kernel takes 0.60 µs" {
		t.Errorf("got %+v", f)
	}
	if f := Empty(601, 600); f != nil {
		t.Errorf("got %+v", f)
	}
	if f := Empty(1, 0); f != nil {
		t.Errorf("unknown: got %+v", f)
	}
}

func TestApplies(t *testing.T) {
	for _, tt := range []struct {
		op, inputs string
		want       bool
	}{
		{"gdn", `"x":{"shape":["n"],"dtype":"bfloat16"},"cu_seqlens":{"shape":["n"],"dtype":"int64"}`, true},
		{"gemm", `"a":{"shape":["n"],"dtype":"float16"},"b":{"shape":["n"],"dtype":"float8_e4m3fn"}`, true},
		{"rmsnorm", `"a":{"shape":["n"],"dtype":"float16"},"rank":{"shape":null,"dtype":"int32"}`, true},
		{"gqa_paged", `"q":{"shape":["n"],"dtype":"bfloat16"},"kv_indices":{"shape":["n"],"dtype":"int32"}`, false},
		{"moe", `"logits":{"shape":["n"],"dtype":"float32"},"w":{"shape":["n"],"dtype":"bfloat16"}`, false},
		{"sampling", `"probs":{"shape":["n"],"dtype":"float32"}`, false},
	} {
		def, _, err := trace.DecodeDefinition([]byte(`{"name":"d","op_type":"` + tt.op + `","axes":{"n":{"type":"var"}},"inputs":{` +
			tt.inputs + `},"outputs":{"y":{"shape":["n"],"dtype":"float32"}},"reference":"def run():\n  pass\n"}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := Applies(def); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.op, got, tt.want)
		}
	}
}

// The traffic leaves out scalars, absent inputs, pools of states, and tensors changed in place.
func TestLeast(t *testing.T) {
	const definition = `{"name":"d","op_type":"gdn","axes":{"n":{"type":"var"},"c":{"type":"const","value":4},
"p":{"type":"var"}},"inputs":{"x":{"shape":["n","c"],"dtype":"bfloat16"},"state":{"shape":["p","c"],"dtype":"float32"},
"state_indices":{"shape":["n"],"dtype":"int32"},"z":{"shape":["n"],"dtype":"float32"},"o":{"shape":["n"],"dtype":"float32",
"optional":true},"scale":{"shape":null,"dtype":"float32"}},"outputs":{"y":{"shape":["n","c"],"dtype":"float32"},
"z2":{"shape":["n"],"dtype":"float32","param":"z"}},"reference":"def run():\n  pass\n"}`
	path := filepath.Join(t.TempDir(), "d.json")
	if err := os.WriteFile(path, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	def, _, err := trace.ReadDefinition(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &trace.Workload{}
	w.Axes.Set("n", 3)
	w.Axes.Set("p", 1000)
	for _, name := range []string{"x", "state", "state_indices", "z"} {
		w.Inputs.Set(name, trace.InputSpec{Kind: trace.Random})
	}
	w.Inputs.Set("scale", trace.InputSpec{Kind: trace.ScalarInput})
	if got, want := Least(def, w), (Traffic{3*4*2 + 3*4, 3 * 4 * 4}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	def.OpType = "moe"
	if got := Least(def, w); got != (Traffic{}) {
		t.Errorf("moe: got %+v", got)
	}
}

package reference

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

const moe = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"

// small makes a definition from fields NAME:AXES:DTYPE. DTYPE defaults to float32; NAME alone is a scalar. Axis kN is
// const with value N; all others are var.
func small(t *testing.T, op, name, inputs, outputs string) *trace.Definition {
	t.Helper()
	axes := map[string]bool{}
	spec := func(text string) string {
		var all []string
		for _, field := range strings.Fields(text) {
			name, shape, _ := strings.Cut(field, ":")
			if shape == "" {
				all = append(all, `"`+name+`":{"shape":null,"dtype":"float32"}`)
				continue
			}
			shape, dtype, ok := strings.Cut(shape, ":")
			if !ok {
				dtype = "float32"
			}
			all = append(all, `"`+name+`":{"shape":["`+strings.ReplaceAll(shape, ",", `","`)+`"],"dtype":"`+dtype+`"}`)
			for axis := range strings.SplitSeq(shape, ",") {
				axes[axis] = true
			}
		}
		return strings.Join(all, ",")
	}
	in, out := spec(inputs), spec(outputs)
	var list []string
	for _, axis := range slices.Sorted(maps.Keys(axes)) {
		if value, ok := strings.CutPrefix(axis, "k"); ok {
			list = append(list, `"`+axis+`":{"type":"const","value":`+value+`}`)
		} else {
			list = append(list, `"`+axis+`":{}`)
		}
	}
	def, _, err := trace.DecodeDefinition([]byte(`{"name":"` + name + `","op_type":"` + op + `","axes":{` +
		strings.Join(list, ",") +
		`},"inputs":{` + in + `},"outputs":{` + out + `},"reference":"def run(): pass"}`))
	if err != nil {
		t.Fatal(err)
	}
	return def
}

func TestRoute(t *testing.T) {
	third := func(weights map[int]float64) map[int]float64 { // to three places
		for e, w := range weights {
			weights[e] = math.Round(w*1000) / 1000
		}
		return weights
	}
	at := func(n int, values map[int]float64) []float64 {
		all := make([]float64, n)
		for i, x := range values {
			all[i] = x
		}
		return all
	}
	// Two experts of each of the first four groups of four.
	pairs := map[int]float64{0: 1, 1: 1, 4: 1, 5: 1, 8: 1, 9: 1, 12: 1, 13: 1}
	lone := maps.Clone(pairs)
	lone[16] = 1.9 // the best expert, but its group's two best are worse than the others
	fifth := maps.Clone(pairs)
	fifth[16], fifth[17] = 1.1, 1.1 // a better group replaces the last of the equal ones
	for _, c := range []struct {
		name         string
		logits, bias []float64
		want         map[int]float64
	}{
		{"all equal", make([]float64, 16), make([]float64, 16), map[int]float64{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1}},
		{"a worse group", make([]float64, 16), at(16, map[int]float64{0: -1}), map[int]float64{2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1, 8: 1, 9: 1}},
		// Scores .75 and .8, of which the latter is not chosen.
		{"biased", at(32, map[int]float64{0: math.Log(3), 2: math.Log(4)}), at(32, pairs),
			map[int]float64{0: 1.412, 1: 0.941, 4: 0.941, 5: 0.941, 8: 0.941, 9: 0.941, 12: 0.941, 13: 0.941}},
		{"two best of a group", make([]float64, 32), at(32, lone), map[int]float64{0: 1, 1: 1, 4: 1, 5: 1, 8: 1, 9: 1, 12: 1,
			13: 1}},
		{"a better group", make([]float64, 32), at(32, fifth), map[int]float64{0: 1, 1: 1, 4: 1, 5: 1, 8: 1, 9: 1, 16: 1,
			17: 1}},
	} {
		if got := third(route(c.logits, c.bias, 8)); !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	// A difference below float32's precision does not decide.
	logits := slices.Repeat([]float64{20}, 16)
	logits[15] = 20.001
	if got := route(logits, make([]float64, 16), 8); got[15] != 0 {
		t.Errorf("equal scores in float32: got %v, want the first experts", got)
	}
}

func smallMoE(t *testing.T) (*trace.Definition, map[string]any) {
	def := small(t, "moe", moe, `routing_logits:T,E routing_bias:E hidden_states:T,H:float8_e4m3fn hidden_states_scale:HB,T
		gemm1_weights:L,G,H:float8_e4m3fn gemm1_weights_scale:L,GB,HB gemm2_weights:L,H,I:float8_e4m3fn gemm2_weights_scale:L,HB,IB
		local_expert_offset routed_scaling_factor`, "output:T,H")
	fp8 := func(shape []int, xs ...float64) *tensor.Tensor {
		x := tensor.New(tensor.Float8E4M3FN, shape...)
		x.WriteFloat64s(xs, 0)
		return x
	}
	return def, map[string]any{
		"routing_logits": floats([]int{1, 16}), "routing_bias": floats([]int{16}),
		"hidden_states": fp8([]int{1, 4}, 1, 2, 1, -1), "hidden_states_scale": floats([]int{2, 1}, 1, 0.5), // x = 1 2 .5 -.5
		"gemm1_weights": fp8([]int{2, 4, 4},
			1, 0, 0, 0, 0, 1, 0, 0, // up = 1 2
			0, 0, 2, 0, 0, 0, 0, 2), // gate = 2 -2, with a scale of 2
		"gemm1_weights_scale": floats([]int{2, 2, 2}, 1, 3, 5, 2),
		"gemm2_weights":       fp8([]int{2, 4, 2}, 1, 0, 0, 1, 1, 1, 1, -1),
		"gemm2_weights_scale": floats([]int{2, 2, 1}, 1, 10),
		"local_expert_offset": 2.0, "routed_scaling_factor": 8.0,
	}
}

func TestMoEByHand(t *testing.T) {
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	one, two := silu(2), 2*silu(-2)
	y := []float32{float32(one), float32(two), float32(10 * (one + two)), float32(10 * (one - two))}
	none := make([]float32, 4)
	for _, c := range []struct {
		name  string
		input string
		value any
		want  []float32
	}{
		{"all given", "routed_scaling_factor", 8.0, y},
		{"half the weight", "routed_scaling_factor", 4.0, []float32{y[0] / 2, y[1] / 2, y[2] / 2, y[3] / 2}},
		{"the last expert is chosen", "local_expert_offset", 7.0, y},
		{"experts that are not chosen", "local_expert_offset", 8.0, none},
		{"experts that do not exist", "local_expert_offset", 100.0, none},
		{"the first local expert does not exist", "local_expert_offset", -1.0, none}, // and the second one has no weights
	} {
		def, values := smallMoE(t)
		values[c.input] = c.value
		out, err := Run(t.Context(), def, args(def, values))
		if err != nil {
			t.Fatal(err)
		}
		if got := float32s(out[0]); !near(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// Tokens of one expert, and experts of one token, must not mix.
func TestMoETokensAlone(t *testing.T) {
	const tokens, experts, hidden, inner, local = 9, 32, 12, 6, 8
	def, values := smallMoE(t)
	fp8 := func(name string, shape ...int) *tensor.Tensor {
		x := tensor.New(tensor.Float8E4M3FN, shape...)
		x.WriteFloat32s(float32s(normal(name, shape...)), 0)
		return x
	}
	maps.Copy(values, map[string]any{
		"routing_logits": normal("r", tokens, experts), "routing_bias": normal("b", experts),
		"hidden_states": fp8("x", tokens, hidden), "hidden_states_scale": normal("xs", 3, tokens),
		"gemm1_weights": fp8("w1", local, 2*inner, hidden), "gemm1_weights_scale": normal("s1", local, 4, 3),
		"gemm2_weights": fp8("w2", local, hidden, inner), "gemm2_weights_scale": normal("s2", local, 3, 2),
		"local_expert_offset": 4.0,
	})
	all, err := Run(t.Context(), def, args(def, values))
	if err != nil {
		t.Fatal(err)
	}
	together := float32s(all[0])
	used := 0
	for token := range tokens {
		one := maps.Clone(values)
		one["routing_logits"] = floats([]int{1, experts}, floats64(values["routing_logits"].(*tensor.Tensor), token*experts,
			experts)...)
		x := tensor.New(tensor.Float8E4M3FN, 1, hidden)
		x.WriteFloat64s(floats64(values["hidden_states"].(*tensor.Tensor), token*hidden, hidden), 0)
		one["hidden_states"] = x
		scales := values["hidden_states_scale"].(*tensor.Tensor)
		one["hidden_states_scale"] = floats([]int{3, 1}, floats64(scales, token, 1)[0], floats64(scales, tokens+token, 1)[0],
			floats64(scales, 2*tokens+token, 1)[0])
		want := make([]float32, hidden)
		for e := range local { // each expert alone
			one["local_expert_offset"] = 4.0 + float64(e)
			for _, name := range []string{"gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale"} {
				w := values[name].(*tensor.Tensor)
				n := w.Len() / local
				part := tensor.New(w.DType, append([]int{1}, w.Shape[1:]...)...)
				part.WriteFloat64s(floats64(w, e*n, n), 0)
				one[name] = part
			}
			out, err := Run(t.Context(), def, args(def, one))
			if err != nil {
				t.Fatal(err)
			}
			for i, y := range float32s(out[0]) {
				want[i] += y
				if y != 0 && i == 0 {
					used++
				}
			}
		}
		for i, x := range together[token*hidden : (token+1)*hidden] {
			if math.Abs(float64(x-want[i])) > 1e-4*math.Max(1, math.Abs(float64(want[i]))) {
				t.Errorf("token %d, channel %d: got %v, want %v", token, i, x, want[i])
			}
		}
	}
	if used < 5 || used == tokens*local {
		t.Errorf("%d of %d pairs of a token and a local expert, want some", used, tokens*local)
	}
}

func TestMoERejects(t *testing.T) {
	for _, c := range []struct {
		name  string
		value any
		want  string
	}{
		{"routing_bias", floats([]int{15}), "'routing_bias': shape [15], want [16]"},
		{"gemm1_weights", normal("", 2, 4, 5), "'gemm1_weights': shape [2 4 5], want [2 4 4]"},
		{"gemm2_weights_scale", floats([]int{2, 3, 1}), "'gemm2_weights_scale': shape [2 3 1], want [2 2 1]"},
		{"hidden_states_scale", nil, "'hidden_states_scale' is not a tensor"},
		{"hidden_states", normal("", 4), "want 2 axes"},
		{"gemm2_weights", normal("", 2, 4, 3), "'gemm1_weights': shape [2 4 4], want [2 6 4]"},
	} {
		def, values := smallMoE(t)
		values[c.name] = c.value
		if _, err := Run(t.Context(), def, args(def, values)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
		}
	}
	def, values := smallMoE(t)
	values["routing_logits"], values["routing_bias"] = floats([]int{1, 8}), floats([]int{8})
	if _, err := Run(t.Context(), def, args(def, values)); err == nil ||
		!strings.Contains(err.Error(), "8 experts in 8 groups") {
		t.Errorf("groups of one expert: got error %v", err)
	}
	values["gemm1_weights_scale"] = floats([]int{2, 3, 2})
	if _, err := Run(t.Context(), def, args(def, values)); err == nil ||
		!strings.Contains(err.Error(), "4 channels in 3 blocks") {
		t.Errorf("three blocks of four rows: got error %v", err)
	}
}

// Families are distinguished by the definition's name if no input distinguishes them.
func TestKnowsNames(t *testing.T) {
	def, _ := smallMoE(t)
	def.Reference = contestReference(t, moe)
	for name, want := range map[string]bool{moe: true, "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e8_h128_i64": true,
		"moe_fp8_block_scale_ds_routing_topk4_ng8_kg4_e32_h7168_i2048": false,
		"moe_fp8_block_scale_softmax_routing_e32":                      false} {
		def.Name = name
		if got := Knows(def); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if _, err := Run(t.Context(), &trace.Definition{Name: "other"}, []workloads.Input{}); err == nil ||
		!strings.Contains(err.Error(), "no reference in Go for definition other") {
		t.Errorf("an unknown definition: got error %v", err)
	}
}

func float32s(t *tensor.Tensor) []float32 {
	dst := make([]float32, t.Len())
	t.ReadFloat32s(dst, 0)
	return dst
}

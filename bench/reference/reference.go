// Package reference computes the expected outputs of the contest's definitions and their relatives in float64: the
// gdn family, fp8 mixtures of experts, paged sparse attention and its indexer. It uses plain loops on purpose and is
// not for timing. Other definitions, and those with another reference text, need their Python reference.
package reference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A family is a kind of definition that one function computes for any sizes.
type family struct {
	opType, prefix string         // of the definition's op type and name
	inputs         map[string]int // ranks by name; 0 is a scalar
	outputs        []string
	ranks          []int // of the outputs
	run            func(context.Context, *trace.Definition, arguments) ([]*tensor.Tensor, error)
}

var families = []family{
	{opType: "gdn", outputs: []string{"output", "new_state"}, ranks: []int{4, 4}, run: runGDN,
		inputs: map[string]int{"q": 4, "k": 4, "v": 4, "state": 4, "A_log": 1, "a": 3, "dt_bias": 1, "b": 3, "scale": 0}},
	{opType: "gdn", outputs: []string{"output", "new_state"}, ranks: []int{3, 4}, run: runGDN,
		inputs: map[string]int{"q": 3, "k": 3, "v": 3, "state": 4, "A_log": 1, "a": 2, "dt_bias": 1, "b": 2,
			"cu_seqlens": 1, "scale": 0}},
	{opType: "gdn", outputs: []string{"output", "intermediate_states"}, ranks: []int{4, 5}, run: runGDN,
		inputs: pooled(nil)},
	{opType: "gdn", outputs: []string{"output"}, ranks: []int{4}, run: runGDN, inputs: pooled(nil)},
	{opType: "gdn", outputs: []string{"output", "final_state"}, ranks: []int{4, 4}, run: runGDN, inputs: pooled(nil)},
	{opType: "gdn", outputs: []string{"output", "final_state"}, ranks: []int{4, 4}, run: runGDN,
		inputs: pooled(map[string]int{"output_state_indices": 1})},
	{opType: "gdn", outputs: []string{"output", "final_state"}, ranks: []int{4, 4}, run: runGDN,
		inputs: pooled(map[string]int{"ssm_state_indices": 2})},
	// The name gives the numbers of chosen experts and groups; no input does.
	{opType: "moe", prefix: "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_", outputs: []string{"output"},
		ranks: []int{2}, run: runMoE,
		inputs: map[string]int{"routing_logits": 2, "routing_bias": 1, "hidden_states": 2, "hidden_states_scale": 2,
			"gemm1_weights": 3, "gemm1_weights_scale": 3, "gemm2_weights": 3, "gemm2_weights_scale": 3, "local_expert_offset": 0,
			"routed_scaling_factor": 0}},
	{opType: "dsa_paged", prefix: "dsa_sparse_attention_", outputs: []string{"output", "lse"}, ranks: []int{3, 2},
		run:    runAttention,
		inputs: map[string]int{"q_nope": 3, "q_pe": 3, "ckv_cache": 3, "kpe_cache": 3, "sparse_indices": 2, "sm_scale": 0}},
	{opType: "dsa_paged", prefix: "dsa_topk_indexer_fp8_", outputs: []string{"topk_indices"}, ranks: []int{2},
		run:    runIndexer,
		inputs: map[string]int{"q_index_fp8": 3, "k_index_cache_fp8": 4, "weights": 2, "seq_lens": 1, "block_table": 2}},
}

// pooled returns the inputs of gdn with its states in a pool, plus slots.
func pooled(slots map[string]int) map[string]int {
	in := map[string]int{"q": 4, "k": 4, "v": 4, "initial_state": 4, "initial_state_indices": 1, "A_log": 1, "a": 3,
		"dt_bias": 1, "b": 3, "scale": 0}
	maps.Copy(in, slots)
	return in
}

func familyOf(def *trace.Definition) *family {
	for i := range families {
		if f := &families[i]; f.has(def) {
			return f
		}
	}
	return nil
}

func (f *family) has(def *trace.Definition) bool {
	if def.OpType != f.opType || !strings.HasPrefix(def.Name, f.prefix) || def.Inputs.Len() != len(f.inputs) ||
		!slices.Equal(def.Outputs.Keys(), f.outputs) {
		return false
	}
	for name, spec := range def.Inputs.All() {
		rank, ok := f.inputs[name]
		if !ok || spec.Scalar != (rank == 0) || len(spec.Shape) != rank {
			return false
		}
	}
	for i, name := range f.outputs {
		if spec, _ := def.Outputs.Get(name); spec.Scalar || len(spec.Shape) != f.ranks[i] {
			return false
		}
	}
	return true
}

// Knows reports whether Run computes the same as def's own reference. It compares op type, names, ranks and the text
// of the reference without its assertions, but not head counts or sizes.
func Knows(def *trace.Definition) bool {
	_, ok := known[textHash(def.Reference)]
	return ok && familyOf(def) != nil
}

// known holds the references that Run has been compared with, by textHash, and the gdn variant of each: first those
// of the embedded definitions, then the contest's.
var known = map[string]variant{
	"7b03f156780d2a0700612c6bb5917d33df45c20bb0537dae6f4a6e39b29ab615": {},             // sparse attention
	"09a586e91abf66febb07f6ba7b801fafb080d7b18ef6d2fb05c69944edb97eb3": {},             // top-k indexer
	"597405a43a2930310353b261659ddc813acc9c6b0040cc18bb9ee71a9fdb30ee": {},             // gdn decode
	"764c38eb6b7f4a19cfcf5487136efaf15c5332d8c20051b66d973a743ef5cad8": {},             // gdn prefill
	"ce3012adaf0053e731804e38ac53f7e2e7b953348e3cda7ef7f00ecd3fec942c": {},             // mixture of experts
	"884de7ca430875d8215578469ff50f7d41e96cc0310727b15353015add2f87a6": {},             // gdn decode, bfloat16 state
	"768f0128adfa5a23f54086e2adad72c69b7c484e93da3a435084e0f594579d68": {l2norm: true}, // gdn decode, l2norm
	"2be4b92be5a8967878ce069a9740f5dd1cb8ccf29da200a0649d4a4d83c325f6": {vLast: true},  // gdn decode, v last
	"d3f630a04a4267c3d1d3f01cca8daf8e666c29ce3af874c0753a081ebb7f2525": {l2norm: true}, // gdn mtp
	"3e7c1e0d26cfcbc68a594c94e91cb79dfe1ac3d454bb846f8e3e12761834b906": {l2norm: true}, // gdn mtp, output alone
	"2988bfe716340883d6f1ebbf83cc7d6f05f9a48e3ca6392917aab9ff3874dc32": {l2norm: true}, // gdn mtp, verify
	"97f3e664dfc76afe46b862ebee79aa7a9b4b1f052210ac153b8909bde6d02b5c": {l2norm: true}, // gdn mtp, pool in place
	"6efee3f0867d0a34234da622298fce6260fe3485e0c81cb269f40b5698055746": {l2norm: true}, // gdn mtp, to another slot
	"10e5604686971359dba7a623634a59f6da696efd8b9acc99f4f40d00255724dd": {l2norm: true}, // gdn mtp, a slot for each token
	"bf3e7c50ded0d8d2beb33b239d5b02357987851611d4e1fe4aa9dc61f6157fe6": {},             // sparse attention, pages of 1
	"908c79c3db02b54a909315d3ecb8f2ff43092b182ff186b881cd612a20975104": {},             // sparse attention, pages of 64
	"c92bdc613ecd0c2e92b983ffdeebf1a3c4e1d728cfc12edfc8b66eb7f3715dcc": {},             // top-k indexer
	"83c2f864b2bfe36f98333acc1472ab4556bf4ae11f407df4bb36c7a8c6ff53b7": {},             // gdn decode
	"56185377424580bdaf104e8beee041ca102a273af4744dba0b24612e0aaa9af1": {},             // gdn prefill
	"2328c7bda18bed89ffbf3a0b804c6089c36bbe5bd3e609bcb90760eb8f544880": {},             // mixture of experts
}

// textHash returns the SHA-256 of a reference without its one-line assertions, which contain sizes.
func textHash(text string) string {
	h := sha256.New()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "assert ") {
			io.WriteString(h, line) //nolint:errcheck // a hash never fails
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Run returns the outputs of def in its order and dtypes. Knows must report true for def. Inputs are in the
// definition's order; a state of None is zero, a scale of None or 0 is 1/sqrt(K). The error names the input that does
// not fit the others, or is ctx's. Extra memory: the outputs in float64 and, per core, a few rows or one head's
// state.
func Run(ctx context.Context, def *trace.Definition, inputs []workloads.Input) ([]*tensor.Tensor, error) {
	f := familyOf(def)
	if f == nil {
		return nil, fmt.Errorf("reference: no reference in Go for definition %s", def.Name)
	}
	in, err := newArguments(def, inputs)
	var out []*tensor.Tensor
	if err == nil {
		out, err = f.run(ctx, def, in)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return out, nil
}

// arguments holds the inputs of a definition by name.
type arguments map[string]workloads.Input

func newArguments(def *trace.Definition, inputs []workloads.Input) (arguments, error) {
	names := def.Inputs.Keys()
	if len(inputs) != len(names) {
		return nil, fmt.Errorf("%d inputs, want %d", len(inputs), len(names))
	}
	in := arguments{}
	for i, name := range names {
		spec, _ := def.Inputs.Get(name)
		x := inputs[i].Tensor
		switch {
		case spec.Scalar:
		case x == nil && name != "state":
			return nil, fmt.Errorf("input '%s' is not a tensor", name)
		case x != nil && len(x.Shape) != len(spec.Shape):
			return nil, fmt.Errorf("input '%s': shape %v, want %d axes", name, x.Shape, len(spec.Shape))
		}
		in[name] = inputs[i]
	}
	return in, nil
}

// shaped returns an error for the first input, by name, with a shape other than want's. None always fits.
func (in arguments) shaped(want map[string][]int) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if x := in[name].Tensor; x != nil && !slices.Equal(x.Shape, want[name]) {
			return fmt.Errorf("input '%s': shape %v, want %v", name, x.Shape, want[name])
		}
	}
	return nil
}

// number returns the value of a scalar input, or 0 if it is None.
func (in arguments) number(name string) float64 {
	s := in[name].Scalar
	switch {
	case s == nil:
		return 0
	case s.Kind == trace.IntScalar:
		return float64(s.Int)
	case s.Kind == trace.BoolScalar && s.Bool:
		return 1
	}
	return s.Float
}

// floats64 reads n elements of t, starting at index first.
func floats64(t *tensor.Tensor, first, n int) []float64 {
	dst := make([]float64, n)
	t.ReadFloat64s(dst, first)
	return dst
}

// spread calls work on each core. next returns the numbers below n, each once; ok is false after the last, or when
// ctx has ended.
func spread(ctx context.Context, n int, work func(next func() (i int, ok bool))) {
	var dealt atomic.Int64
	next := func() (int, bool) {
		i := int(dealt.Add(1)) - 1
		return i, i < n && ctx.Err() == nil
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() { work(next) })
	}
	wg.Wait()
}

// dot returns the sum of the products of x and y, which have equal lengths.
func dot(x, y []float64) float64 {
	y = y[:len(x)]
	var sums [4]float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		sums[0] += x[i] * y[i]
		sums[1] += x[i+1] * y[i+1]
		sums[2] += x[i+2] * y[i+2]
		sums[3] += x[i+3] * y[i+3]
	}
	for ; i < len(x); i++ {
		sums[0] += x[i] * y[i]
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

package reference

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

const (
	attention = "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64"
	indexer   = "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64"
)

func int32s(shape []int, xs ...float64) *tensor.Tensor {
	x := tensor.New(tensor.Int32, shape...)
	x.WriteFloat64s(xs, 0)
	return x
}

// smallAttention has three tokens, two heads of two channels and one positional channel, and two pages of two
// entries. Head 0's logits are an entry's first channel plus its positional one, head 1's are twice that.
func smallAttention(t *testing.T) (*trace.Definition, map[string]any) {
	def := small(t, "dsa_paged", attention,
		"q_nope:T,H,D q_pe:T,H,E ckv_cache:P,S,D kpe_cache:P,S,E sparse_indices:T,K:int32 sm_scale", "output:T,H,D lse:T,H")
	return def, map[string]any{
		"q_nope":         floats([]int{3, 2, 2}, 2, 0, 4, 0, 2, 0, 4, 0, 2, 0, 4, 0),
		"q_pe":           floats([]int{3, 2, 1}, 2, 4, 2, 4, 2, 4),
		"ckv_cache":      floats([]int{2, 2, 2}, 0, 1, 7, 7, 8, 8, math.Log(3)-1, 5),
		"kpe_cache":      floats([]int{2, 2, 1}, 0, 7, 8, 1),
		"sparse_indices": int32s([]int{3, 3}, 3, -1, 0, -1, -1, -1, -1, 0, -1),
		"sm_scale":       0.5,
	}
}

func TestAttentionByHand(t *testing.T) {
	def, values := smallAttention(t)
	output, lse := run(t, def, values)
	x := math.Log(3) - 1
	// Token 0 weighs its entries 3 and 0 as 3 to 1, and in head 1 as 9 to 1; token 1 has no entry; token 2 has only
	// entry 0.
	want := []float32{float32(.75 * x), 4, float32(.9 * x), 4.6, 0, 0, 0, 0, 0, 1, 0, 1}
	if !near(output, want) {
		t.Errorf("output: got %v, want %v", output, want)
	}
	inf := float32(math.Inf(-1))
	if want := []float32{2, float32(math.Log2(10)), inf, inf, 0, 0}; !near(lse[:2], want[:2]) ||
		!slices.Equal(lse[2:4], want[2:4]) || !near(lse[4:], want[4:]) {
		t.Errorf("lse: got %v, want %v", lse, want)
	}
	// Logits whose exponentials overflow float64, in ascending and descending order.
	for _, order := range [][]float64{{3, 0, -1}, {0, 3, -1}} {
		values["sm_scale"] = 500.0
		values["sparse_indices"] = int32s([]int{3, 3}, append(order, -1, -1, -1, 0, 0, 0)...)
		output, lse = run(t, def, values)
		if want := []float32{float32(x), 5}; !near(output[:2], want) ||
			!near(lse[:1], []float32{float32(1000 * math.Log(3) / math.Ln2)}) {
			t.Errorf("large logits: got %v and %v, want %v", output[:2], lse[:1], want)
		}
	}
}

// smallIndexer has two sequences over a cache of four pages of two tokens. Token i's key is (i+1, 0), through its
// scale; the heads are (1, 0) and (-1, 0) with weights 2 and 100, so the score of token i is 2(i+1). Sequence 0 has
// pages 3, 0 and 2 and four tokens: 6, 7, 0 and 1. Sequence 1 has page 1 and one token, 2.
func smallIndexer(t *testing.T) (*trace.Definition, map[string]any) {
	def := small(t, "dsa_paged", indexer,
		"q_index_fp8:B,H,D:float8_e4m3fn k_index_cache_fp8:P,S,ONE,W:int8 weights:B,H seq_lens:B:int32 block_table:B,C:int32",
		"topk_indices:B,k3:int32")
	q := tensor.New(tensor.Float8E4M3FN, 2, 2, 2)
	q.WriteFloat32s([]float32{1, 0, -1, 0, 1, 0, -1, 0}, 0)
	cache := tensor.New(tensor.Int8, 4, 2, 1, 6)
	for i := range 8 {
		page := cache.Data[i/2*12:]
		page[i%2*2] = tensor.Float8E4M3FNFromFloat32(1)
		binary.LittleEndian.PutUint32(page[4+i%2*4:], math.Float32bits(float32(i+1)))
	}
	return def, map[string]any{"q_index_fp8": q, "k_index_cache_fp8": cache,
		"weights":  floats([]int{2, 2}, 2, 100, 2, 100),
		"seq_lens": int32s([]int{2}, 4, 1), "block_table": int32s([]int{2, 3}, 3, 0, 2, 1, -7, 99)}
}

func TestIndexerByHand(t *testing.T) {
	for _, c := range []struct {
		name    string
		lengths []float64
		weights []float64
		want    []int
	}{
		{"best first", []float64{4, 1}, []float64{2, 100, 2, 100}, []int{7, 6, 1, 2, -1, -1}},
		{"fewer than three", []float64{2, 0}, []float64{2, 100, 2, 100}, []int{7, 6, -1, -1, -1, -1}},
		{"a part of a page", []float64{3, 2}, []float64{2, 100, 2, 100}, []int{7, 6, 0, 3, 2, -1}},
		{"equal scores", []float64{4, 2}, []float64{0, 5, 0, 5}, []int{6, 7, 0, 2, 3, -1}},
		{"negative weights", []float64{4, 2}, []float64{-1, 5, -1, 5}, []int{0, 1, 6, 2, 3, -1}},
	} {
		def, values := smallIndexer(t)
		values["seq_lens"], values["weights"] = int32s([]int{2}, c.lengths...), floats([]int{2, 2}, c.weights...)
		out, err := Run(t.Context(), def, args(def, values))
		if err != nil {
			t.Fatal(err)
		}
		if got := out[0].Ints(); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPagedRejects(t *testing.T) {
	for _, c := range []struct {
		of    func(*testing.T) (*trace.Definition, map[string]any)
		name  string
		value any
		want  string
	}{
		{smallAttention, "q_pe", floats([]int{3, 1, 1}), "'q_pe': shape [3 1 1], want [3 2 1]"},
		{smallAttention, "kpe_cache", floats([]int{2, 1, 1}), "'kpe_cache': shape [2 1 1], want [2 2 1]"},
		{smallAttention, "sparse_indices", int32s([]int{3, 2}, 0, 1, 2, 4, 0, 0),
			"'sparse_indices': 4 at index [1 1], with 4 entries"},
		{smallAttention, "sparse_indices", int32s([]int{3, 1}, 0, -2, 2), "'sparse_indices': -2 at index [1 0]"},
		{smallIndexer, "seq_lens", int32s([]int{2}, 4, 7), "'seq_lens': 7 at index 1, with room for 6 tokens"},
		{smallIndexer, "seq_lens", int32s([]int{2}, -1, 1), "'seq_lens': -1 at index 0"},
		{smallIndexer, "seq_lens", int32s([]int{2}, 4, 3), "'block_table': -7 at index [1 1], with 4 pages"},
		{smallIndexer, "block_table", int32s([]int{2, 2}, 3, 4, 0, 0), "'block_table': 4 at index [0 1], with 4 pages"},
		{smallIndexer, "k_index_cache_fp8", tensor.New(tensor.Int8, 4, 2, 1, 7),
			"'k_index_cache_fp8': shape [4 2 1 7], want [4 2 1 6]"},
		{smallIndexer, "k_index_cache_fp8", tensor.New(tensor.Int16, 4, 2, 1, 6), "want pages of bytes"},
		{smallIndexer, "k_index_cache_fp8", tensor.New(tensor.Int8, 4, 0, 1, 6), "want pages of bytes"},
	} {
		def, values := c.of(t)
		values[c.name] = c.value
		if _, err := Run(t.Context(), def, args(def, values)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, of := range []func(*testing.T) (*trace.Definition, map[string]any){smallAttention, smallIndexer, smallMoE} {
		def, values := of(t)
		if out, err := Run(ctx, def, args(def, values)); !errors.Is(err, context.Canceled) || out != nil {
			t.Errorf("%s: got %v, %v", def.Name, out, err)
		}
	}
}

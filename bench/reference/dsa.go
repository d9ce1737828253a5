package reference

import (
	"context"
	"fmt"
	"math"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// runAttention computes one head of one token at a time.
func runAttention(ctx context.Context, def *trace.Definition, in arguments) ([]*tensor.Tensor, error) {
	q, qPos, cache, cachePos := in["q_nope"].Tensor, in["q_pe"].Tensor, in["ckv_cache"].Tensor, in["kpe_cache"].Tensor
	tokens, heads, width, widthPos := q.Shape[0], q.Shape[1], q.Shape[2], qPos.Shape[2]
	pages, page, topk := cache.Shape[0], cache.Shape[1], in["sparse_indices"].Tensor.Shape[1]
	if err := in.shaped(map[string][]int{"q_pe": {tokens, heads, widthPos}, "ckv_cache": {pages, page, width},
		"kpe_cache": {pages, page, widthPos}, "sparse_indices": {tokens, topk}}); err != nil {
		return nil, err
	}
	entries := in["sparse_indices"].Tensor.Ints()
	for i, e := range entries {
		if e < -1 || e >= pages*page {
			return nil, fmt.Errorf("input 'sparse_indices': %d at index [%d %d], with %d entries", e, i/topk, i%topk, pages*page)
		}
	}
	scale := in.number("sm_scale")
	spec, _ := def.Outputs.Get("output")
	specLSE, _ := def.Outputs.Get("lse")
	output, lse := tensor.New(spec.DType, tokens, heads, width), tensor.New(specLSE.DType, tokens, heads)
	spread(ctx, tokens*heads, func(next func() (int, bool)) {
		query, queryPos := make([]float64, width), make([]float64, widthPos)
		key, keyPos, sum := make([]float64, width), make([]float64, widthPos), make([]float64, width)
		for i, ok := next(); ok; i, ok = next() {
			q.ReadFloat64s(query, i*width)
			qPos.ReadFloat64s(queryPos, i*widthPos)
			clear(sum)
			largest, total := math.Inf(-1), 0.0
			for _, e := range entries[i/heads*topk : (i/heads+1)*topk] {
				if e < 0 {
					continue
				}
				cache.ReadFloat64s(key, e*width)
				cachePos.ReadFloat64s(keyPos, e*widthPos)
				logit := scale * (dot(query, key) + dot(queryPos, keyPos))
				// Sums are relative to the largest logit so far.
				weight := 1.0
				if logit > largest {
					fade := math.Exp(largest - logit)
					total *= fade
					for j := range sum {
						sum[j] *= fade
					}
					largest = logit
				} else {
					weight = math.Exp(logit - largest)
				}
				total += weight
				for j, x := range key {
					sum[j] += weight * x
				}
			}
			for j := range sum {
				sum[j] /= math.Max(total, 1) // at least 1, from the largest logit, if there is an entry
			}
			output.WriteFloat64s(sum, i*width)
			lse.WriteFloat64s([]float64{(largest + math.Log(total)) / math.Ln2}, i)
		}
	})
	return []*tensor.Tensor{output, lse}, nil
}

// runIndexer computes one sequence at a time.
func runIndexer(ctx context.Context, def *trace.Definition, in arguments) ([]*tensor.Tensor, error) {
	q, cache, table := in["q_index_fp8"].Tensor, in["k_index_cache_fp8"].Tensor, in["block_table"].Tensor
	batch, heads, width := q.Shape[0], q.Shape[1], q.Shape[2]
	pages, page, columns := cache.Shape[0], cache.Shape[1], table.Shape[1]
	if err := in.shaped(map[string][]int{"k_index_cache_fp8": {pages, page, 1, width + 4}, "weights": {batch, heads},
		"seq_lens": {batch}, "block_table": {batch, columns}}); err != nil {
		return nil, err
	}
	if cache.DType.Bits() != 8 || page == 0 {
		return nil, fmt.Errorf("input 'k_index_cache_fp8': shape %v of %v, want pages of bytes", cache.Shape, cache.DType)
	}
	spec, _ := def.Outputs.Get("topk_indices")
	topk, ok := def.Axes.Get(spec.Shape[1])
	if !ok || !topk.Const {
		return nil, fmt.Errorf("axis %s has no value", spec.Shape[1])
	}
	lengths, slots := in["seq_lens"].Tensor.Ints(), table.Ints()
	for b, n := range lengths {
		if n < 0 || n > columns*page {
			return nil, fmt.Errorf("input 'seq_lens': %d at index %d, with room for %d tokens", n, b, columns*page)
		}
		for i, p := range slots[b*columns : b*columns+(n+page-1)/page] {
			if p < 0 || p >= pages {
				return nil, fmt.Errorf("input 'block_table': %d at index [%d %d], with %d pages", p, b, i, pages)
			}
		}
	}
	chosen := tensor.New(spec.DType, batch, topk.Value)
	spread(ctx, batch, func(next func() (int, bool)) {
		for b, ok := next(); ok; b, ok = next() {
			queries, weights := floats64(q, b*heads*width, heads*width), floats64(in["weights"].Tensor, b*heads, heads)
			scores := make([]float64, lengths[b])
			for i := range scores {
				key := indexKey(cache, slots[b*columns+i/page], i%page)
				for h, weight := range weights {
					scores[i] += weight * math.Max(0, dot(key, queries[h*width:]))
				}
				if ctx.Err() != nil {
					return
				}
			}
			all := best(indices(0, len(scores)), scores)
			row := slices.Repeat([]float64{-1}, topk.Value)
			for i, at := range all[:min(len(all), len(row))] {
				row[i] = float64(slots[b*columns+at/page]*page + at%page)
			}
			chosen.WriteFloat64s(row, b*len(row))
		}
	})
	return []*tensor.Tensor{chosen}, nil
}

// indexKey returns the key of a token in a page of the packed cache. A page holds the float8_e4m3fn channels of all
// tokens, then their float32 scales.
func indexKey(cache *tensor.Tensor, page, token int) []float64 {
	tokens, width := cache.Shape[1], cache.Shape[3]-4
	data := cache.Data[page*tokens*(width+4):]
	channels := tensor.Tensor{DType: tensor.Float8E4M3FN, Shape: []int{width}, Data: data[token*width : (token+1)*width]}
	scales := tensor.Tensor{DType: tensor.Float32, Shape: []int{tokens}, Data: data[tokens*width : tokens*(width+4)]}
	key, scale := floats64(&channels, 0, width), scales.Float64(token)
	for i := range key {
		key[i] *= scale
	}
	return key
}

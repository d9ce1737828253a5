package reference

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// Routing constants: the number of groups of experts, of groups kept, and of experts chosen from these.
const moeGroups, moeKept, moeChosen = 8, 4, 8

// A choice is a token that chose an expert, with its weight.
type choice struct {
	token  int
	weight float64
}

// runMoE computes the experts of one rank that were chosen by some token. It reads an expert's matrices one row at a
// time, once for all of its tokens, and holds the tokens of one expert at a time in float64.
func runMoE(ctx context.Context, def *trace.Definition, in arguments) ([]*tensor.Tensor, error) {
	x, w1, w2 := in["hidden_states"].Tensor, in["gemm1_weights"].Tensor, in["gemm2_weights"].Tensor
	tokens, hidden := x.Shape[0], x.Shape[1]
	local, inner := w2.Shape[0], w2.Shape[2]
	experts := in["routing_logits"].Tensor.Shape[1]
	xs, s1, s2 := in["hidden_states_scale"].Tensor, in["gemm1_weights_scale"].Tensor, in["gemm2_weights_scale"].Tensor
	// Blocks of the hidden, the first product's and the inner channels.
	across, rows1, columns2 := xs.Shape[0], s1.Shape[1], s2.Shape[2]
	if err := in.shaped(map[string][]int{
		"routing_logits": {tokens, experts}, "routing_bias": {experts}, "hidden_states_scale": {across, tokens},
		"gemm1_weights": {local, 2 * inner, hidden}, "gemm1_weights_scale": {local, rows1, across},
		"gemm2_weights": {local, hidden, inner}, "gemm2_weights_scale": {local, across, columns2},
	}); err != nil {
		return nil, err
	}
	for _, b := range []struct{ extent, blocks int }{{hidden, across}, {2 * inner, rows1}, {inner, columns2}} {
		if b.blocks == 0 || b.extent%b.blocks != 0 {
			return nil, fmt.Errorf("%d channels in %d blocks", b.extent, b.blocks)
		}
	}
	if experts%moeGroups != 0 || experts/moeGroups*moeKept < moeChosen {
		return nil, fmt.Errorf("%d experts in %d groups", experts, moeGroups)
	}
	offset := int(in.number("local_expert_offset"))
	logits, bias := in["routing_logits"].Tensor, floats64(in["routing_bias"].Tensor, 0, experts)
	chosen := make([][]choice, local)
	for t := range tokens {
		for expert, weight := range route(floats64(logits, t*experts, experts), bias, in.number("routed_scaling_factor")) {
			if e := expert - offset; e >= 0 && e < local {
				chosen[e] = append(chosen[e], choice{t, weight})
			}
		}
	}
	sum := make([]float64, tokens*hidden)
	for e, takers := range chosen {
		if len(takers) == 0 {
			continue
		}
		inputs := make([][]float64, len(takers))
		for i, c := range takers {
			inputs[i] = floats64(x, c.token*hidden, hidden)
			for b := range across {
				scale := xs.Float64(b*tokens + c.token)
				for j := b * hidden / across; j < (b+1)*hidden/across; j++ {
					inputs[i][j] *= scale
				}
			}
		}
		first := blockMatrix{w1, s1, e, 2 * inner, hidden}.product(ctx, inputs)
		for _, y := range first {
			for j, up := range y[:inner] {
				gate := y[inner+j]
				y[j] = gate / (1 + math.Exp(-gate)) * up
			}
		}
		for i, y := range (blockMatrix{w2, s2, e, hidden, inner}).product(ctx, first) {
			to := sum[takers[i].token*hidden:]
			for j, v := range y {
				to[j] += takers[i].weight * v
			}
		}
	}
	spec, _ := def.Outputs.Get("output")
	output := tensor.New(spec.DType, tokens, hidden)
	output.WriteFloat64s(sum, 0)
	return []*tensor.Tensor{output}, nil
}

// route returns the weights of the experts chosen by a token. It rounds scores to float32, in which the definition
// compares them, so that the choice does not depend on digits that float32 does not have. The first of equal experts
// wins.
func route(logits, bias []float64, factor float64) map[int]float64 {
	score, biased := make([]float32, len(logits)), make([]float32, len(logits))
	for i, x := range logits {
		score[i] = float32(1 / (1 + math.Exp(-x)))
		biased[i] = score[i] + float32(bias[i])
	}
	size := len(logits) / moeGroups
	groups := make([]float32, moeGroups)
	for g := range groups {
		members := best(indices(g*size, size), biased)
		groups[g] = biased[members[0]] + biased[members[1]]
	}
	var candidates []int
	for _, g := range best(indices(0, moeGroups), groups)[:moeKept] {
		candidates = append(candidates, indices(g*size, size)...)
	}
	slices.Sort(candidates)
	weights, total := map[int]float64{}, 1e-20
	for _, e := range best(candidates, biased)[:moeChosen] {
		weights[e] = float64(score[e])
		total += weights[e]
	}
	for e := range weights {
		weights[e] *= factor / total
	}
	return weights
}

func indices(first, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = first + i
	}
	return all
}

// best sorts all by descending score, keeping the order of equal ones.
func best[T cmp.Ordered](all []int, score []T) []int {
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(score[b], score[a]) })
	return all
}

// A blockMatrix is matrix number index of a tensor of matrices with one scale per block.
type blockMatrix struct {
	values, scales       *tensor.Tensor
	index, rows, columns int
}

func (m blockMatrix) product(ctx context.Context, xs [][]float64) [][]float64 {
	out := make([][]float64, len(xs))
	for i := range out {
		out[i] = make([]float64, m.rows)
	}
	down, across := m.scales.Shape[1], m.scales.Shape[2]
	spread(ctx, m.rows, func(next func() (int, bool)) {
		row, scales := make([]float64, m.columns), make([]float64, across)
		for r, ok := next(); ok; r, ok = next() {
			m.values.ReadFloat64s(row, (m.index*m.rows+r)*m.columns)
			m.scales.ReadFloat64s(scales, (m.index*down+r/(m.rows/down))*across)
			for b, s := range scales {
				for j := b * m.columns / across; j < (b+1)*m.columns/across; j++ {
					row[j] *= s
				}
			}
			for i, x := range xs {
				out[i][r] = dot(row, x)
			}
		}
	})
	return out
}

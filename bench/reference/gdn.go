package reference

import (
	"context"
	"fmt"
	"math"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A call holds the tensors of one run, with leading axes flattened to one of tokens. Sequence n owns the tokens
// starts[n] to starts[n+1]-1.
type call struct {
	q, k           *tensor.Tensor // (tokens, HQ, K)
	v              *tensor.Tensor // (tokens, HV, V)
	a, b           *tensor.Tensor // (tokens, HV)
	aLog, dtBias   *tensor.Tensor // (HV)
	state          *tensor.Tensor // (sequences, HV, V, K) or nil
	scale          float64
	starts         []int
	hq, hv, kn, vn int
	emptyIsZero    bool // a sequence without tokens has a zero new state, as in the contest's prefill reference

	output   *tensor.Tensor // (tokens, HV, V)
	newState *tensor.Tensor // (sequences, HV, V, K)
}

func runGDN(ctx context.Context, def *trace.Definition, in arguments) ([]*tensor.Tensor, error) {
	c, err := newCall(def, in)
	if err != nil {
		return nil, err
	}
	c.run(ctx)
	return []*tensor.Tensor{c.output, c.newState}, nil
}

func newCall(def *trace.Definition, in arguments) (*call, error) {
	c := &call{q: in["q"].Tensor, k: in["k"].Tensor, v: in["v"].Tensor, a: in["a"].Tensor, b: in["b"].Tensor,
		aLog: in["A_log"].Tensor, dtBias: in["dt_bias"].Tensor, state: in["state"].Tensor, scale: in.number("scale")}
	lead := len(c.q.Shape) - 2 // axes of tokens: batch and time, or time alone
	c.hq, c.kn = c.q.Shape[lead], c.q.Shape[lead+1]
	c.hv, c.vn = c.v.Shape[lead], c.v.Shape[lead+1]
	if c.hq == 0 || c.hv%c.hq != 0 {
		return nil, fmt.Errorf("%d value heads for %d query heads", c.hv, c.hq)
	}
	tokens := slices.Clone(c.q.Shape[:lead])
	if err := c.split(tokens, in["cu_seqlens"].Tensor); err != nil {
		return nil, err
	}
	stateShape := []int{len(c.starts) - 1, c.hv, c.vn, c.kn}
	if err := in.shaped(map[string][]int{
		"k": append(slices.Clone(tokens), c.hq, c.kn), "v": append(slices.Clone(tokens), c.hv, c.vn), "state": stateShape,
		"a": append(slices.Clone(tokens), c.hv), "b": append(slices.Clone(tokens), c.hv), "A_log": {c.hv}, "dt_bias": {c.hv},
	}); err != nil {
		return nil, err
	}
	if c.scale == 0 {
		c.scale = 1 / math.Sqrt(float64(c.kn))
	}
	output, _ := def.Outputs.Get("output")
	newState, _ := def.Outputs.Get("new_state")
	c.output = tensor.New(output.DType, c.v.Shape...)
	c.newState = tensor.New(newState.DType, stateShape...)
	return c, nil
}

// split sets starts: batch rows of equal length, or the sequences that cu_seqlens cuts the tokens into.
func (c *call) split(tokens []int, cu *tensor.Tensor) error {
	if cu == nil {
		for n := range tokens[0] + 1 {
			c.starts = append(c.starts, n*tokens[1])
		}
		return nil
	}
	c.emptyIsZero = true
	ends := make([]float64, cu.Len())
	cu.ReadFloat64s(ends, 0)
	for i, end := range ends {
		if end < 0 || end > float64(tokens[0]) || i > 0 && end < ends[i-1] {
			return fmt.Errorf("input 'cu_seqlens': %v at index %d, with %d tokens", end, i, tokens[0])
		}
		c.starts = append(c.starts, int(end))
	}
	if len(ends) == 0 {
		return fmt.Errorf("input 'cu_seqlens' is empty")
	}
	return nil
}

// run spreads the heads of all sequences over the cores.
func (c *call) run(ctx context.Context) {
	spread(ctx, (len(c.starts)-1)*c.hv, func(next func() (int, bool)) {
		h := c.newHead()
		for i, ok := next(); ok; i, ok = next() {
			h.run(i/c.hv, i%c.hv)
		}
	})
}

// A head is the scratch memory of one goroutine.
type head struct {
	*call
	s         []float64 // state, (V, K)
	q, k      []float64 // of the token, (K)
	v, out    []float64 // (V)
	aLog, dtB [1]float64
}

func (c *call) newHead() *head {
	return &head{call: c, s: make([]float64, c.vn*c.kn), q: make([]float64, c.kn), k: make([]float64, c.kn),
		v: make([]float64, c.vn), out: make([]float64, c.vn)}
}

func (h *head) run(sequence, hv int) {
	at := (sequence*h.hv + hv) * len(h.s)
	first, end := h.starts[sequence], h.starts[sequence+1]
	if first == end && h.emptyIsZero {
		return
	}
	clear(h.s)
	if h.state != nil {
		h.state.ReadFloat64s(h.s, at)
	}
	hq := hv / (h.call.hv / h.hq)
	h.call.aLog.ReadFloat64s(h.aLog[:], hv)
	h.dtBias.ReadFloat64s(h.dtB[:], hv)
	for t := first; t < end; t++ {
		var a, b [1]float64
		h.call.a.ReadFloat64s(a[:], t*h.hv+hv)
		h.call.b.ReadFloat64s(b[:], t*h.hv+hv)
		h.call.q.ReadFloat64s(h.q, (t*h.hq+hq)*h.kn)
		h.call.k.ReadFloat64s(h.k, (t*h.hq+hq)*h.kn)
		h.call.v.ReadFloat64s(h.v, (t*h.hv+hv)*h.vn)
		decay := math.Exp(-math.Exp(h.aLog[0]) * softplus(a[0]+h.dtB[0]))
		beta := 1 / (1 + math.Exp(-b[0]))
		step(h.out, h.s, h.q, h.k, h.v, decay, beta, h.scale)
		h.output.WriteFloat64s(h.out, (t*h.hv+hv)*h.vn)
	}
	h.newState.WriteFloat64s(h.s, at)
}

// step takes one token into the state s, (V, K), and reads it out: out = scale * S q, with
//
//	S = decay*S + beta * (v - decay*S k) k^T
func step(out, s, q, k, v []float64, decay, beta, scale float64) {
	for i := range v {
		row := s[i*len(k) : (i+1)*len(k)]
		var have float64
		for j, x := range row {
			row[j] = decay * x
			have += row[j] * k[j]
		}
		delta := beta * (v[i] - have)
		var sum float64
		for j := range row {
			row[j] += delta * k[j]
			sum += row[j] * q[j]
		}
		out[i] = scale * sum
	}
}

// softplus is log(1 + e^x), and x itself above torch's threshold.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

package reference

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// A call holds the tensors of one run, with the leading axes flattened to one of tokens. Sequence n has the tokens
// starts[n] to starts[n+1]-1.
type call struct {
	q, k           *tensor.Tensor // (tokens, HQ, K)
	v              *tensor.Tensor // (tokens, HV, V)
	a, b           *tensor.Tensor // (tokens, HV)
	aLog, dtBias   *tensor.Tensor // (HV)
	state          *tensor.Tensor // (slots, HV, V, K) or nil; v last: (slots, HV, K, V)
	scale          float64
	starts         []int
	hq, hv, kn, vn int
	emptyIsZero    bool // the new state of a sequence without tokens is zero, as in the contest's prefill reference
	variant

	// State slots: read and written by each sequence, and written after each token. A sequence that reads a negative
	// slot is padding, with an output of 0. A state with a negative slot to write is not stored.
	read, write, each []int

	output      *tensor.Tensor // (tokens, HV, V)
	newState    *tensor.Tensor // (slots, HV, V, K), or nil
	tokenStates *tensor.Tensor // written through each: newState, or (tokens, HV, V, K)
}

// A variant holds facts that the inputs do not show: queries and keys are normalised first, value channels are last
// in a state.
type variant struct{ l2norm, vLast bool }

func runGDN(ctx context.Context, def *trace.Definition, in arguments) ([]*tensor.Tensor, error) {
	c, err := newCall(def, in)
	if err != nil {
		return nil, err
	}
	c.run(ctx)
	var out []*tensor.Tensor
	for _, name := range def.Outputs.Keys() {
		named := map[string]*tensor.Tensor{"output": c.output, "intermediate_states": c.tokenStates}
		out = append(out, cmp.Or(named[name], c.newState))
	}
	return out, nil
}

func newCall(def *trace.Definition, in arguments) (*call, error) {
	c := &call{q: in["q"].Tensor, k: in["k"].Tensor, v: in["v"].Tensor, a: in["a"].Tensor, b: in["b"].Tensor,
		aLog: in["A_log"].Tensor, dtBias: in["dt_bias"].Tensor, state: in["state"].Tensor, scale: in.number("scale"),
		variant: known[textHash(def.Reference)]}
	lead := len(c.q.Shape) - 2 // axes of tokens: batch and time, or only time
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
	if c.vLast {
		stateShape[2], stateShape[3] = c.kn, c.vn
	}
	if pool := in["initial_state"].Tensor; pool != nil {
		c.state, stateShape[0] = pool, pool.Shape[0]
	}
	if err := in.shaped(map[string][]int{
		"k": append(slices.Clone(tokens), c.hq, c.kn), "v": append(slices.Clone(tokens), c.hv, c.vn), "state": stateShape,
		"initial_state": stateShape, "initial_state_indices": {tokens[0]}, "output_state_indices": {tokens[0]},
		"ssm_state_indices": tokens,
		"a":                 append(slices.Clone(tokens), c.hv), "b": append(slices.Clone(tokens), c.hv),
		"A_log": {c.hv}, "dt_bias": {c.hv},
	}); err != nil {
		return nil, err
	}
	if c.scale == 0 {
		c.scale = 1 / math.Sqrt(float64(c.kn))
	}
	output, _ := def.Outputs.Get("output")
	c.output = tensor.New(output.DType, c.v.Shape...)
	if newState, ok := def.Outputs.Get("new_state"); ok {
		c.newState = tensor.New(newState.DType, stateShape...)
	}
	return c, c.pool(def, in, stateShape)
}

// pool sets the slots to read and write: the sequences in order, or the slots given by the inputs.
func (c *call) pool(def *trace.Definition, in arguments, stateShape []int) (err error) {
	sequences, tokens := len(c.starts)-1, c.starts[len(c.starts)-1]
	c.read = indices(0, sequences)
	if in["initial_state"].Tensor != nil {
		if c.read, err = in.slots("initial_state_indices", stateShape[0]); err != nil {
			return err
		}
	}
	c.write = c.read
	if _, ok := def.Outputs.Get("final_state"); ok {
		c.newState = &tensor.Tensor{DType: c.state.DType, Shape: c.state.Shape, Data: bytes.Clone(c.state.Data)}
	}
	if spec, ok := def.Outputs.Get("intermediate_states"); ok {
		c.each = indices(0, tokens)
		c.tokenStates = tensor.New(spec.DType, slices.Concat(c.q.Shape[:len(c.q.Shape)-2], stateShape[1:])...)
	}
	switch {
	case in["output_state_indices"].Tensor != nil:
		c.write, err = in.slots("output_state_indices", stateShape[0])
	case in["ssm_state_indices"].Tensor != nil:
		c.each, err = in.slots("ssm_state_indices", stateShape[0])
		c.tokenStates, c.write = c.newState, slices.Repeat([]int{-1}, sequences)
	}
	if err == nil && c.newState != nil {
		err = cmp.Or(once(c.write), once(c.each))
	}
	return err
}

// slots returns the pool slots in an input. Negative numbers mean no slot.
func (in arguments) slots(name string, pool int) ([]int, error) {
	list := in[name].Tensor.Ints()
	for i, slot := range list {
		if slot >= pool {
			return nil, fmt.Errorf("input '%s': slot %d at index %d, of a pool of %d", name, slot, i, pool)
		}
	}
	return list, nil
}

// once rejects a slot that is written twice, because its content would be undefined.
func once(slots []int) error {
	seen := map[int]bool{}
	for _, slot := range slots {
		if slot >= 0 && seen[slot] {
			return fmt.Errorf("slot %d is written twice", slot)
		}
		seen[slot] = true
	}
	return nil
}

// split sets starts, from batch rows of equal length or from cu_seqlens.
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
	s      []float64 // state, (V, K)
	q, k   []float64 // of the token, (K)
	v, out []float64 // (V)
}

func (c *call) newHead() *head {
	return &head{call: c, s: make([]float64, c.vn*c.kn), q: make([]float64, c.kn), k: make([]float64, c.kn),
		v: make([]float64, c.vn), out: make([]float64, c.vn)}
}

func (h *head) run(sequence, hv int) {
	slot := h.read[sequence]
	first, end := h.starts[sequence], h.starts[sequence+1]
	if slot < 0 || first == end && h.emptyIsZero {
		return
	}
	clear(h.s)
	if h.state != nil {
		h.state.ReadFloat64s(h.s, (slot*h.call.hv+hv)*len(h.s))
		if h.vLast {
			transpose(h.s, h.kn)
		}
	}
	hq := hv / (h.call.hv / h.hq)
	rate, bias := math.Exp(h.aLog.Float64(hv)), h.dtBias.Float64(hv)
	for t := first; t < end; t++ {
		h.call.q.ReadFloat64s(h.q, (t*h.hq+hq)*h.kn)
		h.call.k.ReadFloat64s(h.k, (t*h.hq+hq)*h.kn)
		h.call.v.ReadFloat64s(h.v, (t*h.hv+hv)*h.vn)
		if h.l2norm {
			unit(h.q)
			unit(h.k)
		}
		decay := math.Exp(-rate * softplus(h.a.Float64(t*h.hv+hv)+bias))
		beta := 1 / (1 + math.Exp(-h.b.Float64(t*h.hv+hv)))
		step(h.out, h.s, h.q, h.k, h.v, decay, beta, h.scale)
		h.output.WriteFloat64s(h.out, (t*h.hv+hv)*h.vn)
		if h.each != nil {
			h.store(h.tokenStates, h.each[t], hv)
		}
	}
	h.store(h.newState, h.write[sequence], hv)
}

// store writes the state to a slot of to, unless to is nil or slot negative. It destroys a state whose value channels
// are last.
func (h *head) store(to *tensor.Tensor, slot, hv int) {
	if to == nil || slot < 0 {
		return
	}
	if h.vLast {
		transpose(h.s, h.vn)
	}
	to.WriteFloat64s(h.s, (slot*h.call.hv+hv)*len(h.s))
}

// transpose transposes in place a matrix with that many rows.
func transpose(m []float64, rows int) {
	old, columns := slices.Clone(m), len(m)/rows
	for i, x := range old {
		m[i%columns*rows+i/columns] = x
	}
}

// unit divides x by the root of the sum of squares plus 1e-6.
func unit(x []float64) {
	length := math.Sqrt(dot(x, x) + 1e-6)
	for i := range x {
		x[i] /= length
	}
}

// step adds one token to the state s, (V, K), and reads it out: out = scale * S q, with
//
//	S = decay*S + beta * (v - decay*S k) k^T
//
// Four rows share a pass, because additions to one sum depend on each other and those to different sums do not.
func step(out, s, q, k, v []float64, decay, beta, scale float64) {
	n := len(k)
	q = q[:n]
	i := 0
	for ; i+4 <= len(v); i += 4 {
		rows := s[i*n : (i+4)*n]
		r0, r1, r2, r3 := rows[:n], rows[n:][:n], rows[2*n:][:n], rows[3*n:][:n]
		var h0, h1, h2, h3 float64
		for j, y := range k {
			x0, x1, x2, x3 := decay*r0[j], decay*r1[j], decay*r2[j], decay*r3[j]
			r0[j], r1[j], r2[j], r3[j] = x0, x1, x2, x3
			h0, h1, h2, h3 = h0+x0*y, h1+x1*y, h2+x2*y, h3+x3*y
		}
		d0, d1, d2, d3 := beta*(v[i]-h0), beta*(v[i+1]-h1), beta*(v[i+2]-h2), beta*(v[i+3]-h3)
		h0, h1, h2, h3 = 0, 0, 0, 0
		for j, y := range k {
			x0, x1, x2, x3 := r0[j]+d0*y, r1[j]+d1*y, r2[j]+d2*y, r3[j]+d3*y
			r0[j], r1[j], r2[j], r3[j] = x0, x1, x2, x3
			z := q[j]
			h0, h1, h2, h3 = h0+x0*z, h1+x1*z, h2+x2*z, h3+x3*z
		}
		out[i], out[i+1], out[i+2], out[i+3] = scale*h0, scale*h1, scale*h2, scale*h3
	}
	for ; i < len(v); i++ {
		row := s[i*n : (i+1)*n]
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

// softplus returns log(1 + e^x), and x itself above torch's threshold.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

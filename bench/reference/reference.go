// Package reference computes the expected outputs of the gdn family in float64: decoding, also of several tokens, and
// prefill over packed sequences. It is plain loops on purpose and not for timing; other definitions need their Python
// reference.
package reference

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// Knows tells whether Run can compute def: by op type, names and ranks, not by name or head counts.
func Knows(def *trace.Definition) bool {
	want := map[string]int{"q": 4, "k": 4, "v": 4, "state": 4, "A_log": 1, "a": 3, "dt_bias": 1, "b": 3, "scale": 0}
	if _, packed := def.Inputs.Get("cu_seqlens"); packed {
		want = map[string]int{"q": 3, "k": 3, "v": 3, "state": 4, "A_log": 1, "a": 2, "dt_bias": 1, "b": 2, "cu_seqlens": 1, "scale": 0}
	}
	if def.OpType != "gdn" || def.Inputs.Len() != len(want) || !slices.Equal(def.Outputs.Keys(), []string{"output", "new_state"}) {
		return false
	}
	for name, spec := range def.Inputs.All() {
		rank, ok := want[name]
		if !ok || spec.Scalar != (name == "scale") || len(spec.Shape) != rank {
			return false
		}
	}
	out, _ := def.Outputs.Get("output")
	state, _ := def.Outputs.Get("new_state")
	return len(out.Shape) == want["v"] && len(state.Shape) == 4
}

// Run returns the outputs of def, which Knows must know, in its order and dtypes. Inputs are in the definition's order;
// a state of None is zero, a scale of None or 0 is 1/sqrt(K). Memory beyond inputs and outputs is one head's state in
// float64 for each core. The error says which input does not fit the others.
func Run(def *trace.Definition, inputs []workloads.Input) ([]*tensor.Tensor, error) {
	if !Knows(def) {
		return nil, fmt.Errorf("reference: definition %s is not of the gdn family", def.Name)
	}
	c, err := newCall(def, inputs)
	if err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	c.run()
	return []*tensor.Tensor{c.output, c.newState}, nil
}

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

func newCall(def *trace.Definition, inputs []workloads.Input) (*call, error) {
	names := def.Inputs.Keys()
	if len(inputs) != len(names) {
		return nil, fmt.Errorf("%d inputs, want %d", len(inputs), len(names))
	}
	in := map[string]*tensor.Tensor{}
	var scale *trace.Scalar
	for i, name := range names {
		spec, _ := def.Inputs.Get(name)
		x := inputs[i].Tensor
		switch {
		case name == "scale":
			scale = inputs[i].Scalar
		case x == nil && name != "state":
			return nil, fmt.Errorf("input '%s' is not a tensor", name)
		case x != nil && len(x.Shape) != len(spec.Shape):
			return nil, fmt.Errorf("input '%s': shape %v, want %d axes", name, x.Shape, len(spec.Shape))
		}
		in[name] = x
	}
	c := &call{q: in["q"], k: in["k"], v: in["v"], a: in["a"], b: in["b"], aLog: in["A_log"], dtBias: in["dt_bias"], state: in["state"]}
	lead := len(c.q.Shape) - 2 // axes of tokens: batch and time, or time alone
	c.hq, c.kn = c.q.Shape[lead], c.q.Shape[lead+1]
	c.hv, c.vn = c.v.Shape[lead], c.v.Shape[lead+1]
	if c.hq == 0 || c.hv%c.hq != 0 {
		return nil, fmt.Errorf("%d value heads for %d query heads", c.hv, c.hq)
	}
	tokens := slices.Clone(c.q.Shape[:lead])
	if err := c.split(tokens, in["cu_seqlens"]); err != nil {
		return nil, err
	}
	stateShape := []int{len(c.starts) - 1, c.hv, c.vn, c.kn}
	for name, want := range map[string][]int{
		"k": append(slices.Clone(tokens), c.hq, c.kn), "v": append(slices.Clone(tokens), c.hv, c.vn), "state": stateShape,
		"a": append(slices.Clone(tokens), c.hv), "b": append(slices.Clone(tokens), c.hv), "A_log": {c.hv}, "dt_bias": {c.hv},
	} {
		if x := in[name]; x != nil && !slices.Equal(x.Shape, want) {
			return nil, fmt.Errorf("input '%s': shape %v, want %v", name, x.Shape, want)
		}
	}
	if scale != nil {
		switch scale.Kind {
		case trace.IntScalar:
			c.scale = float64(scale.Int)
		case trace.FloatScalar:
			c.scale = scale.Float
		case trace.BoolScalar:
			if scale.Bool {
				c.scale = 1
			}
		}
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
func (c *call) run() {
	heads := (len(c.starts) - 1) * c.hv
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), heads) {
		wg.Go(func() {
			h := c.newHead()
			for {
				i := int(next.Add(1)) - 1
				if i >= heads {
					return
				}
				h.run(i/c.hv, i%c.hv)
			}
		})
	}
	wg.Wait()
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

package workloads

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"math"
	"path"
	"strings"

	"fisub/internal/trace"
	"fisub/workloads/random"
)

// EdgeSet is the set of inputs that a definition allows but typical workloads do not have. Every dataset has it for
// each definition of the families in edges, unless it has its own set of that name. The inputs are generated.
const EdgeSet = "edge"

// An edge is a case of the edge set. Its workload's uuid is derived from the definition and the name.
type edge struct {
	name     string
	lengths  []int // of a prefill's sequences; nil if the case is not for prefill
	batch    int   // for a definition with a batch; 0 if the case is only for prefill
	tokens   int   // in all, or of each sequence of a batch, if the definition does not fix it
	pages    int   // of the cache, if they have 64 entries
	columns  int   // of a block table
	unscaled bool  // the scale is 0
	values   map[string]value
}

// A value returns element i of an input. usual is the element in other sets, width the length of a row.
type value func(s random.Stream, i, width int, usual float64) float64

// edges are the cases of the set for the definitions of an op type whose names have a prefix. With all of them, the
// definition's reference gives finite outputs that no arbitrary choice affects, and the contest accepts them.
var edges = []struct {
	opType, prefix string
	cases          []edge
}{
	{"dsa_paged", "dsa_sparse_attention_", attentionEdges},
	{"dsa_paged", "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64", indexerEdges},
	{"moe", "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_", moeEdges},
	{"gdn", "", gdnEdges}, // last, since every name has its prefix
}

// gdnEdges lack the state None, which definitions allow: the contest's workload format cannot express it. They also
// lack slots with offsets above 31 bits: the pool would take gigabytes of disk for each definition, and as much again
// for the expected and for the actual output.
var gdnEdges = []edge{
	{name: "scale 0", lengths: []int{9, 26}, batch: 2, tokens: 2, unscaled: true},
	{name: "batch 3", batch: 3, tokens: 3},
	{name: "empty sequences", lengths: []int{0, 37, 0, 0, 66, 0}},
	{name: "a sequence of 2075 tokens", lengths: []int{2075}},
	{name: "state 0", lengths: []int{1, 34}, batch: 2, tokens: 2,
		values: map[string]value{"state": constant(0), "initial_state": constant(0)}},
	{name: "fast decay", lengths: []int{70, 3}, batch: 2, tokens: 4, values: map[string]value{
		"A_log":   constant(math.Log(16)),
		"dt_bias": constant(1),
		// a third of the tokens fades the state to nothing, the others keep nearly all of it
		"a": func(_ random.Stream, i, width int, _ float64) float64 { return []float64{-9, 6, -9}[i/width%3] },
	}},
	{name: "softplus of more than 88", lengths: []int{5, 30}, batch: 2, tokens: 4, values: map[string]value{
		"A_log":   constant(-6),
		"dt_bias": constant(0.5),
		"a": func(s random.Stream, i, _ int, _ float64) float64 {
			return math.Copysign(89+float64(40*s.Uniform(i)), float64(i%3)-0.5)
		},
	}},
	{name: "sigmoid of -100 and 100", lengths: []int{5, 30}, batch: 2, tokens: 4, values: map[string]value{
		"b": func(_ random.Stream, i, width int, _ float64) float64 {
			return []float64{100, -100, 0}[(i/width+i%width)%3]
		},
	}},
	{name: "zero and tiny q and k", lengths: []int{4, 31}, batch: 2, tokens: 4,
		values: map[string]value{"q": shrunk(0), "k": shrunk(1)}},
	// No cancellation, since the tolerance of large values is relative: a zero state and only positive inputs.
	{name: "outputs above 65504", lengths: []int{1, 1, 1}, batch: 2, tokens: 1, values: map[string]value{
		"state": constant(0), "initial_state": constant(0), "b": constant(1),
		"q": positive(1), "k": positive(1), "v": positive(1e6),
	}},
}

func constant(x float64) value { return func(random.Stream, int, int, float64) float64 { return x } }

// positive returns unit times the magnitude of the usual value, which is raised to at least 0.1.
func positive(unit float64) value {
	return func(_ random.Stream, _, _ int, usual float64) float64 { return unit * max(math.Abs(usual), 0.1) }
}

// shrunk makes three of four rows zero or far shorter; by selects which.
func shrunk(by int) value {
	factors := []float64{0, 1e-3, 1, 1e-12}
	return func(_ random.Stream, i, width int, usual float64) float64 { return usual * factors[(i/width+by)%4] }
}

// uuid returns the uuid of the case's workload.
func (e *edge) uuid(def string) string { return UUID(def, EdgeSet, e.name) }

// UUID returns the uuid of a workload that fisub makes: version 5 of RFC 9562, in the URL namespace.
func UUID(def, set, name string) string {
	space, _ := hex.DecodeString("6ba7b8119dad11d180b400c04fd430c8")
	sum := sha1.Sum(append(space, path.Join("fisub", def, set, name)...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// edgeOf returns the edge case with that uuid, or nil.
func edgeOf(def, uuid string) *edge {
	for _, family := range edges {
		for i := range family.cases {
			if e := &family.cases[i]; strings.HasPrefix(def, family.prefix) && e.uuid(def) == uuid {
				return e
			}
		}
	}
	return nil
}

// Tests returns the property that an edge workload tests, such as "scale 0", or "" for any other workload.
func Tests(def, uuid string) string {
	if e := edgeOf(def, uuid); e != nil {
		return e.name
	}
	return ""
}

// fill returns the fill of an input for this case; usual is the fill in other sets.
func (e *edge) fill(name string, shape []int, usual fill) fill {
	if name == "cu_seqlens" {
		return func(_ random.Stream, dst []float32, first int) {
			ends := []float32{0}
			for i, n := range e.lengths {
				ends = append(ends, ends[i]+float32(n))
			}
			copy(dst, ends[first:])
		}
	}
	value := e.values[name]
	if value == nil {
		return usual
	}
	width := shape[len(shape)-1]
	return func(s random.Stream, dst []float32, first int) {
		usual(s, dst, first)
		for i, x := range dst {
			dst[i] = float32(value(s, first+i, width, float64(x)))
		}
	}
}

// edgeWorkloads returns the edge set of a definition, nil if it is of none of the families.
func edgeWorkloads(def *trace.Definition) (ws []*trace.Workload) {
	for _, family := range edges {
		if def == nil || def.OpType != family.opType || !strings.HasPrefix(def.Name, family.prefix) {
			continue
		}
		for i := range family.cases {
			if w := family.cases[i].workload(def); w != nil {
				ws = append(ws, w)
			}
		}
	}
	return ws
}

// scalars are the values of scalar inputs; of scale and sm_scale, the ones in all workloads of the contest.
var scalars = map[string]trace.Scalar{
	"scale":                 {Kind: trace.FloatScalar, Float: 0.08838834764831843},
	"sm_scale":              {Kind: trace.FloatScalar, Float: 0.1352337788608801},
	"local_expert_offset":   {Kind: trace.IntScalar, Int: localGroup * groupSize},
	"routed_scaling_factor": {Kind: trace.FloatScalar, Float: 2.5},
}

// workload returns the case for a definition, or nil if the case does not apply or the definition has an unknown axis
// or scalar. Tensors are in a file, except those of other families than gdn with the contest's random values.
func (e *edge) workload(def *trace.Definition) *trace.Workload {
	total, page := 0, pageSize
	for _, n := range e.lengths {
		total += n
	}
	if a, ok := def.Axes.Get("page_size"); ok && a.Const && a.Value > 0 {
		page = a.Value
	}
	known := map[string]int{"total_seq_len": total, "num_seqs": len(e.lengths), "len_cu_seqlens": len(e.lengths) + 1,
		"batch_size": e.batch, "seq_len": e.tokens, "pool_size": e.batch*(e.tokens+2) + 1, "num_tokens": e.tokens,
		"num_pages": e.pages * pageSize / page, "max_num_pages": e.columns}
	w := &trace.Workload{UUID: e.uuid(def.Name)}
	for name, axis := range def.Axes.All() {
		if axis.Const {
			continue
		}
		if known[name] <= 0 {
			return nil
		}
		w.Axes.Set(name, known[name])
	}
	file := fmt.Sprintf("./blob/workloads/%s/%s/%[2]s_%s.safetensors", def.OpType, def.Name, w.UUID)
	for name, spec := range def.Inputs.All() {
		in := trace.InputSpec{Kind: trace.Safetensors, Path: file, TensorKey: name}
		shape, err := def.Shape(spec, known)
		if err != nil {
			return nil
		}
		if spec.Scalar {
			scalar, ok := scalars[name]
			if !ok {
				return nil
			}
			if e.unscaled {
				scalar.Float = 0
			}
			in = trace.InputSpec{Kind: trace.ScalarInput, Value: scalar}
		} else if own, err := synthFill(def, known, name, shape); err == nil && own == nil && e.values[name] == nil &&
			def.OpType != "gdn" {
			in = trace.InputSpec{Kind: trace.Random}
		}
		w.Inputs.Set(name, in)
	}
	return w
}

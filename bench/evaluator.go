package bench

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// An evaluator selects the contest's rules for judging the outputs of a definition (spec section 5).
type evaluator int

const (
	standard        evaluator = iota
	lowBit                    // reports the matched ratio
	sparseAttention           // a value-returning solution may leave out the second output
	topK                      // compares the scores of the chosen tokens, not their indices
	byFunctions               // functions of the definition judge
)

// evaluatorOf chooses as the contest does. It returns an error for definitions that judgeable rejects and for op type
// sampling, whose samples the contest compares as distributions.
func evaluatorOf(def *trace.Definition) (evaluator, error) {
	const attention = "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_"
	switch {
	case def.OpType == "sampling":
		return 0, fmt.Errorf("definition %s: op type %q: fisub cannot judge random outputs", def.Name, def.OpType)
	case judgeable(def) != nil:
		return 0, judgeable(def)
	case def.Python != nil:
		return byFunctions, nil
	case strings.Contains(def.Name, "moe_fp8_block_scale"):
		return lowBit, nil
	case def.Name == attention+"ps1" || def.Name == attention+"ps64":
		return sparseAttention, nil
	case strings.HasPrefix(def.Name, "dsa_topk_indexer"):
		return topK, nil
	}
	return standard, nil
}

// evaluate adds one trial to v by the rules of e. inputs are the trial's. It returns false when the verdict is final.
func (v *verdict) evaluate(e evaluator, names []string, got []output, want []expected,
	inputs []workloads.Input, tol tensor.Tolerance) bool {
	if e != sparseAttention && len(got) != len(want) { // the worker is broken
		*v = verdict{status: trace.RuntimeError, detail: fmt.Sprintf("%d outputs, expected %d", len(got), len(want))}
		return false
	}
	switch e {
	case lowBit:
		more := v.judge(names, got, want, tol)
		if more {
			v.correctness.Extra = &trace.Map[any]{}
			v.correctness.Extra.Set("matched_ratio", v.matched)
		}
		return more
	case sparseAttention:
		if len(want) != 2 {
			detail := fmt.Sprintf("the reference returns %d outputs, expected 2", len(want))
			*v = verdict{status: trace.RuntimeError, detail: detail}
			return false
		}
		if len(got) != 1 && len(got) != 2 {
			*v = verdict{status: trace.IncorrectShape, detail: fmt.Sprintf("%d outputs, expected 1 or 2", len(got))}
			return false
		}
		return v.judge(names, got, want[:len(got)], tol)
	case topK:
		return v.judgeTopK(names[0], got[0], want[0].Tensor, inputs, tol)
	}
	return v.judge(names, got, want, tol)
}

// judgeTopK judges the indices chosen by the top-k indexer. Each must be a token of its sequence and occur once. The
// scores of the chosen tokens are then compared with the reference's, best first, so neither order nor ties matter.
func (v *verdict) judgeTopK(name string, got output, want *tensor.Tensor, inputs []workloads.Input,
	tol tensor.Tolerance) bool {
	if !v.fits(name, got, want) {
		return false
	}
	ix, err := newIndexer(inputs, want)
	if err != nil {
		*v = verdict{status: trace.RuntimeError, detail: err.Error()}
		return false
	}
	mine, theirs := got.tensor.Ints(), want.Ints()
	k := want.Shape[1]
	row := func(all []int, b int) []int { return all[b*k : (b+1)*k] }

	var outside, twice []int
	for b := range want.Shape[0] {
		seen := map[int]bool{}
		out, dup := false, false
		for _, i := range row(mine, b) {
			if i < 0 {
				continue
			}
			out = out || !ix.has(b, i)
			dup = dup || seen[i]
			seen[i] = true
		}
		if out {
			outside = append(outside, b)
		}
		if dup {
			twice = append(twice, b)
		}
	}
	for _, bad := range []struct {
		what    string
		batches []int
	}{{"out-of-range", outside}, {"duplicate", twice}} {
		if len(bad.batches) > 0 {
			inf := math.Inf(1)
			*v = verdict{status: trace.IncorrectNumerical,
				detail:      fmt.Sprintf("%s indices in batch %s", bad.what, pythonList(bad.batches)),
				correctness: &trace.Correctness{MaxAbsoluteError: inf, MaxRelativeError: inf}}
			return false
		}
	}

	scores := make([][2][]float32, want.Shape[0])
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for b := range scores {
		g.Go(func() error {
			known := map[int]float32{}
			scores[b] = [2][]float32{ix.scores(b, row(mine, b), known), ix.scores(b, row(theirs, b), known)}
			return nil
		})
	}
	_ = g.Wait()

	atol, rtol := float32(tol.Atol), float32(tol.Rtol)
	failed := 0
	for b, s := range scores {
		for i, x := range s[0] {
			y := s[1][i]
			if x == y || x != x && y != y {
				continue
			}
			abs, rel := abs32(x-y), abs32(x-y)/(abs32(y)+1e-8)
			wrong := abs > atol && rel > rtol
			if !finite(x) || !finite(y) {
				abs, rel, wrong = float32(math.Inf(1)), float32(math.Inf(1)), true
			}
			v.correctness.MaxAbsoluteError = pythonMax(v.correctness.MaxAbsoluteError, float64(abs))
			v.correctness.MaxRelativeError = pythonMax(v.correctness.MaxRelativeError, float64(rel))
			if !wrong {
				continue
			}
			failed++
			if v.detail == "" {
				v.detail = fmt.Sprintf("%s: score %d of batch %d is %.6g, expected %.6g", name, i, b, x, y)
			}
		}
	}
	matched := 1.0
	if n := len(mine); n > 0 {
		matched = 1 - float64(failed)/float64(n)
	}
	v.matched = min(v.matched, matched)
	if required := cmp.Or(tol.MatchedRatio, 1); matched < required {
		v.status = trace.IncorrectNumerical
	} else if v.status == trace.Passed {
		v.detail = ""
	}
	return true
}

// compareTopK judges the indices of a call after the verdict; see attempt.compare.
func compareTopK(names []string, got []output, want []expected, inputs []workloads.Input,
	tol tensor.Tolerance) comparison {
	v := newVerdict()
	if !v.fits(names[0], got[0], want[0].Tensor) {
		return comparison{text: v.detail}
	}
	same, unwritten := true, false
	const poisoned = 0x7f7f7f7f // worker.PoisonOf an int32, larger than any index
	k := max(1, rowOf(want[0].Tensor))
	mine, theirs := slices.Chunk(got[0].tensor.Ints(), k), slices.Collect(slices.Chunk(want[0].Ints(), k))
	for row := range mine {
		row, expected := slices.Sorted(slices.Values(row)), slices.Sorted(slices.Values(theirs[0]))
		theirs = theirs[1:]
		same = same && slices.Equal(row, expected)
		unwritten = unwritten || row[k-1] == poisoned
	}
	if inputs == nil {
		return comparison{ok: same}
	}
	v.evaluate(topK, names, got, want, inputs, tol)
	return comparison{ok: v.status == trace.Passed, text: fmt.Sprintf("%s: %s", v.status, v.detail), unwritten: unwritten}
}

// An indexer computes the scores of the top-k indexer from a definition's inputs, in float32.
type indexer struct {
	q       *tensor.Tensor // (batch, heads, dim), float8
	weights *tensor.Tensor // (batch, heads)
	cache   *tensor.Tensor // (pages, tokens, 1, dim+4), bytes: per page the tokens' keys, then their float32 scales
	slots   []map[int]int  // by batch: the first position of each page in the sequence
	lengths []int          // by batch: tokens in the sequence
	tokens  int            // per page
	dim     int
}

func newIndexer(inputs []workloads.Input, indices *tensor.Tensor) (*indexer, error) {
	in := map[string]*tensor.Tensor{}
	for _, i := range inputs {
		in[i.Name] = i.Tensor
	}
	rank := map[string]int{"q_index_fp8": 3, "k_index_cache_fp8": 4, "weights": 2, "seq_lens": 1, "block_table": 2}
	for name, n := range rank {
		if in[name] == nil || len(in[name].Shape) != n {
			return nil, fmt.Errorf("top-k indexer: no input %s of %d axes", name, n)
		}
	}
	ix := &indexer{q: in["q_index_fp8"], weights: in["weights"], cache: in["k_index_cache_fp8"]}
	ix.tokens, ix.dim = ix.cache.Shape[1], ix.cache.Shape[3]-4
	batch, heads := ix.q.Shape[0], ix.q.Shape[1]
	table, lengths := in["block_table"], in["seq_lens"]
	if len(indices.Shape) != 2 || indices.Shape[0] != batch || ix.q.Shape[2] != ix.dim || ix.cache.Shape[2] != 1 ||
		ix.cache.DType.Bits() != 8 || ix.tokens == 0 || !slices.Equal(ix.weights.Shape, []int{batch, heads}) ||
		table.Shape[0] != batch || lengths.Shape[0] != batch {
		return nil, fmt.Errorf("top-k indexer: the shapes do not fit together: q_index_fp8 %v, "+
			"k_index_cache_fp8 %v of %s, weights %v, seq_lens %v, block_table %v, indices %v", ix.q.Shape, ix.cache.Shape,
			ix.cache.DType, ix.weights.Shape, lengths.Shape, table.Shape, indices.Shape)
	}
	ix.lengths = lengths.Ints()
	pages := table.Ints()
	for b := range batch {
		slots := map[int]int{}
		for slot, page := range pages[b*table.Shape[1] : (b+1)*table.Shape[1]] {
			if _, ok := slots[page]; !ok && page >= 0 && page < ix.cache.Shape[0] {
				slots[page] = slot
			}
		}
		ix.slots = append(ix.slots, slots)
	}
	return ix, nil
}

// has reports whether index i, page*tokens + offset, is a token of sequence b.
func (ix *indexer) has(b, i int) bool {
	slot, ok := ix.slots[b][i/ix.tokens]
	return ok && slot*ix.tokens+i%ix.tokens < ix.lengths[b]
}

// scores returns the scores of indices of sequence b in the order of torch's sort: NaN first, then descending. A
// negative index or one beyond the cache scores -Inf. known caches scores for further calls with the same b.
func (ix *indexer) scores(b int, indices []int, known map[int]float32) []float32 {
	heads := ix.q.Shape[1]
	q, w, key := make([]float32, heads*ix.dim), make([]float32, heads), make([]float32, ix.dim)
	ix.q.ReadFloat32s(q, b*len(q))
	ix.weights.ReadFloat32s(w, b*heads)
	out := make([]float32, 0, len(indices))
	for _, i := range indices {
		if i < 0 || i/ix.tokens >= ix.cache.Shape[0] {
			out = append(out, float32(math.Inf(-1)))
			continue
		}
		score, ok := known[i]
		if !ok {
			ix.key(key, i)
			for h, weight := range w {
				var dot float32
				for d, x := range q[h*ix.dim : (h+1)*ix.dim] {
					dot += x * key[d]
				}
				if dot > 0 || dot != dot {
					score += weight * dot
				}
			}
			known[i] = score
		}
		out = append(out, score)
	}
	slices.SortFunc(out, func(x, y float32) int {
		if x != x || y != y {
			return cmp.Compare(x, y) // NaN is below all others
		}
		return cmp.Compare(y, x)
	})
	return out
}

// key dequantises the key of token i of the cache.
func (ix *indexer) key(dst []float32, i int) {
	page := ix.cache.Data[i/ix.tokens*ix.tokens*(ix.dim+4):]
	at := i % ix.tokens
	scales := tensor.Tensor{DType: tensor.Float32, Shape: []int{ix.tokens},
		Data: page[ix.tokens*ix.dim : ix.tokens*(ix.dim+4)]}
	scale := float32(scales.Float64(at))
	for d := range dst {
		dst[d] = tensor.Float32FromFloat8E4M3FN(page[at*ix.dim+d]) * scale
	}
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

func finite(x float32) bool { return x-x == 0 }

// pythonList formats values like Python: [0, 2].
func pythonList(values []int) string { return strings.ReplaceAll(fmt.Sprint(values), " ", ", ") }

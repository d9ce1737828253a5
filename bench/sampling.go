package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// How the contest judges definitions of op type sampling (spec section 5). Here the samples are compared with the
// distribution itself, where the contest draws as many from the reference.
const (
	samplingCalls     = 100    // whose tokens are each checked
	samplingSlack     = 0.05   // of top-p in that check
	samplingSamples   = 500000 // for the distribution
	samplingChunk     = 10000  // calls in one request
	samplingThreshold = 0.2    // total variation distance of a row
)

// evaluateSampling judges a solution that draws one token for each row of probs. On the emulator the distribution is not
// compared: so many calls take too long.
func (r *runner) evaluateSampling(ctx context.Context, t *trial) (verdict, error) {
	if err := r.out.room(t.size); err != nil {
		return verdict{}, err
	}
	if err := r.put(ctx, t); err != nil {
		return verdict{}, err
	}
	s, err := newSampler(t.in.Values)
	if err != nil {
		return verdict{}, &referenceError{r.Definition.Name, err}
	}
	name, want := r.Definition.Outputs.Keys()[0], t.want[0]
	draw := func(n int) (*verdict, error) {
		written, err := r.client.Repeat(ctx, r.out.path(), n)
		if err != nil {
			return nil, err
		}
		outs, unmap, err := r.out.read(written)
		if err != nil {
			return nil, err
		}
		defer unmap()
		return s.count(name, outs, n, want), nil
	}
	v := newVerdict()
	if wrong, err := draw(samplingCalls); err != nil || wrong != nil {
		return deref(wrong), err
	}
	if r.info.Emulated {
		return v, nil
	}
	s.reset()
	for s.calls < samplingSamples {
		if wrong, err := draw(samplingChunk); err != nil || wrong != nil {
			return deref(wrong), err
		}
	}
	s.judge(&v)
	return v, nil
}

func deref(v *verdict) verdict {
	if v == nil {
		return verdict{}
	}
	return *v
}

// A sampler knows what tokens may be drawn, and counts those that are.
type sampler struct {
	vocab   int
	p       [][]float64 // by row and token; the sum of a row is 1
	allowed [][]bool    // with the slack
	counts  [][]int
	calls   int
}

// newSampler takes probs (rows, vocab) and, where there are, top_k and top_p (rows).
func newSampler(inputs []workloads.Input) (*sampler, error) {
	in := map[string]*tensor.Tensor{}
	for _, i := range inputs {
		in[i.Name] = i.Tensor
	}
	probs := in["probs"]
	if probs == nil || len(probs.Shape) != 2 || probs.Shape[1] == 0 {
		return nil, fmt.Errorf("sampling: no input probs of two axes")
	}
	rows := probs.Shape[0]
	s := &sampler{vocab: probs.Shape[1]}
	limit := func(name string, row int, none float64) (float64, error) {
		t := in[name]
		if t == nil {
			return none, nil
		}
		if !slices.Equal(t.Shape, []int{rows}) {
			return 0, fmt.Errorf("sampling: input %s: shape %v, want [%d]", name, t.Shape, rows)
		}
		var x [1]float64
		t.ReadFloat64s(x[:], row)
		return x[0], nil
	}
	for row := range rows {
		k, err := limit("top_k", row, 0)
		if err != nil {
			return nil, err
		}
		p, err := limit("top_p", row, 1)
		if err != nil {
			return nil, err
		}
		x := make([]float64, s.vocab)
		probs.ReadFloat64s(x, row*s.vocab)
		normalize(x)
		s.allowed = append(s.allowed, mask(x, int(k), p+samplingSlack))
		exact := mask(x, int(k), p)
		for i, ok := range exact {
			if !ok {
				x[i] = 0
			}
		}
		normalize(x)
		s.p = append(s.p, x)
	}
	s.reset()
	return s, nil
}

func (s *sampler) reset() {
	s.calls, s.counts = 0, make([][]int, len(s.p))
	for row := range s.counts {
		s.counts[row] = make([]int, s.vocab)
	}
}

func normalize(x []float64) {
	var sum float64
	for _, v := range x {
		sum += v
	}
	for i := range x {
		x[i] /= sum
	}
}

// mask marks the k most likely tokens, all where k is not above 0, among the most likely ones whose sum first reaches p.
// Tokens as likely as the last of them are marked too; those of probability 0 are not.
func mask(x []float64, k int, p float64) []bool {
	sorted := slices.Clone(x)
	slices.SortFunc(sorted, func(a, b float64) int { return cmp.Compare(b, a) })
	if k <= 0 || k > len(sorted) {
		k = len(sorted)
	}
	least := sorted[0]
	var sum float64
	for _, v := range sorted[:k] {
		if sum >= p {
			break
		}
		least = v
		sum += v
	}
	marked := make([]bool, len(x))
	for i, v := range x {
		marked[i] = v >= least && v > 0
	}
	return marked
}

// count takes the tokens of n calls, stacked. It returns a verdict where one is wrong, and nil otherwise.
func (s *sampler) count(name string, outs []output, n int, want *tensor.Tensor) *verdict {
	v := newVerdict()
	stacked := *want
	stacked.Shape = append([]int{n}, want.Shape...)
	if !v.fits(name, outs[0], &stacked) {
		return &v
	}
	tokens := ints(outs[0].tensor)
	for i, token := range tokens {
		row := i % max(len(s.p), 1)
		what := ""
		switch {
		case token < 0 || token >= s.vocab:
			what = fmt.Sprintf("not among the %d of the vocabulary", s.vocab)
		case !s.allowed[row][token]:
			what = "not among those that top-k and top-p leave"
		default:
			s.counts[row][token]++
			continue
		}
		inf := math.Inf(1)
		return &verdict{status: trace.IncorrectNumerical, correctness: &trace.Correctness{MaxAbsoluteError: inf, MaxRelativeError: inf},
			detail: fmt.Sprintf("%s: token %d of row %d is %s", name, token, row, what)}
	}
	s.calls += n
	return nil
}

// judge compares what was counted with the distribution.
func (s *sampler) judge(v *verdict) {
	var worst float64
	rows := []any{}
	for row, p := range s.p {
		var distance float64
		for token, n := range s.counts[row] {
			distance += math.Abs(float64(n)/float64(s.calls) - p[token])
		}
		distance /= 2
		rows = append(rows, distance)
		if distance > worst {
			worst = distance
		}
		if distance > samplingThreshold && v.status == trace.Passed {
			v.status = trace.IncorrectNumerical
			v.detail = fmt.Sprintf("the tokens of row %d have a total variation distance of %.3f from their distribution, at most %g is allowed", row, distance, samplingThreshold)
		}
	}
	v.extra("tvd", worst)
	v.extra("tvds_per_batch", rows)
}

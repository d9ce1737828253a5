package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"fisub/bench/worker"
	"fisub/internal/event"
	"fisub/internal/memfile"
	"fisub/internal/tensor"
	"fisub/workloads"
	"fisub/workloads/random"
)

// A variation is a change of one element of an input for one timed call of each trial. A solution that replays results
// while it is timed gives the results of the other calls.
type variation struct {
	what   string
	patch  worker.Patch
	values []workloads.Input
	want   []expected
	spots  []spot  // elements of outputs that it changes
	other  *inputs // replace all inputs, instead of patch, values and spots; nil unless functions made the inputs
}

// A spot is an element of an output, with its expected value in the other calls and the tolerance there.
type spot struct {
	output, index int
	was, near     float64
}

const maxSpots = 1 << 16

// variations limits the drawn elements, and slowReference is the duration of a reference after which there is no
// further one, if the change of an element does not show in the outputs.
const variations, slowReference = 4, 500 * time.Millisecond

// vary draws a variation of the loaded inputs. It returns nil without a floating-point input, and if the outputs
// for the drawn elements are the same within the tolerance.
func (a *attempt) vary(ctx context.Context) (*variation, error) {
	in := a.loaded
	if in.made != nil {
		o, err := a.other(ctx, in, "timed call")
		if o == nil || err != nil {
			return nil, err
		}
		return &variation{what: "with the inputs of another seed", other: o, want: []expected{{made: o}}}, nil
	}
	inputs := changeable(in.Values)
	for try := 0; try < variations && len(inputs) > 0; try++ {
		r := a.draw("timed call", strconv.Itoa(try))
		i := inputs[r.Intn(0, len(inputs))]
		was := in.Values[i].Tensor
		now, at := substitute(was, r)
		if at < 0 {
			continue
		}
		v := &variation{what: "with one element of " + in.Values[i].Name + " changed", values: slices.Clone(in.Values)}
		from := at * was.DType.Bits() / 8 / 256 * 256
		to := min(from+256, len(was.Data))
		v.patch = worker.Patch{Arg: i, Offset: from, Old: was.Data[from:to], New: now.Data[from:to]}
		v.values[i].Tensor = now
		if a.reference != nil { // it reads files
			f, err := memfile.New("fisub-inputs", 0)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			if _, err := f.Write(now.Data); err != nil {
				return nil, fmt.Errorf("other inputs: %w", err)
			}
			v.values[i].File, v.values[i].Offset = f, 0
		}
		begun := time.Now()
		var err error
		if v.want, err = a.expected(ctx, v.values); err != nil {
			return nil, err
		}
		if v.spots = spots(in.want, v.want, a.shared.Profile.Tolerance); len(v.spots) > 0 {
			return v, nil
		}
		if time.Since(begun) > slowReference {
			break
		}
	}
	return nil, nil
}

// substitute returns a copy of t with a drawn element replaced by the value in its row, or else in t, that differs
// most. So the new value is as plausible as the old one. The result is -1 without such a value.
func substitute(t *tensor.Tensor, r random.Stream) (changed *tensor.Tensor, at int) {
	at = r.Intn(1, t.Len())
	n := rowOf(t)
	for _, part := range [][2]int{{at / n * n, at/n*n + n}, {0, t.Len()}} {
		values := make([]float64, part[1]-part[0])
		t.ReadFloat64s(values, part[0])
		old, far, largest := values[at-part[0]], 0.0, 0.0
		for _, x := range values {
			if d := math.Abs(x - old); d > largest && !math.IsInf(d, 0) {
				far, largest = x, d
			}
		}
		if largest > 0 {
			changed = &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: bytes.Clone(t.Data)}
			changed.WriteFloat64s([]float64{far}, at)
			return changed, at
		}
	}
	return nil, -1
}

// judgeVaried returns a finding if the outputs of a timed call are not those for the variation. what describes the
// call.
func (a *attempt) judgeVaried(ctx context.Context, what string, written []worker.FileTensor) (*event.Finding, error) {
	v := a.varied
	what += ", " + v.what
	a.judgedVaried = true
	c, err := a.compare(ctx, written, v.want, v.values)
	if err != nil || c.ok && v.other != nil {
		return nil, err
	}
	old, err := v.stale(ctx, a, written)
	switch {
	case err != nil:
		return nil, err
	case old:
		return &event.Finding{Check: cachedByContent, Text: what + ", the outputs match the other calls' inputs"}, nil
	case c.ok:
		return nil, nil
	}
	f := c.finding(what)
	if !c.unwritten {
		f.Check = wrongResult
	}
	return f, nil
}

// stale reports whether at least nine tenths of the elements that the variation changes have the other calls' values.
// A definition that permits wrong elements permits all of these.
func (v *variation) stale(ctx context.Context, a *attempt, written []worker.FileTensor) (bool, error) {
	if v.other != nil {
		c, err := a.compare(ctx, written, a.loaded.want, nil)
		return c.ok, err
	}
	got, unmap, err := a.process.out.read(written)
	if err != nil {
		return false, err
	}
	defer unmap()
	for i, o := range got[:min(len(got), len(v.want))] {
		if o.tensor == nil || o.tensor.DType != v.want[i].DType || !slices.Equal(o.shape, v.want[i].Shape) {
			return false, nil
		}
	}
	old := 0
	for _, s := range v.spots {
		if s.output < len(got) && math.Abs(got[s.output].tensor.Float64(s.index)-s.was) <= s.near {
			old++
		}
	}
	return 10*old >= 9*len(v.spots), nil
}

// spots returns elements at which was and now differ by more than twice the tolerance; none for integers.
func spots(was, now []expected, tol tensor.Tolerance) (all []spot) {
	var xs, ys [1024]float64
	for i, t := range now {
		if !t.DType.IsFloat() || was[i].Len() != t.Len() {
			continue
		}
		size := t.DType.Bits() * len(xs) / 8
		for from := 0; from < t.Len() && len(all) < maxSpots; from += len(xs) {
			n, at := min(len(xs), t.Len()-from), from/len(xs)*size
			if end := min(at+size, len(t.Data)); bytes.Equal(t.Data[at:end], was[i].Data[at:end]) {
				continue
			}
			was[i].ReadFloat64s(xs[:n], from)
			t.ReadFloat64s(ys[:n], from)
			for j := range n {
				near := tol.Atol + tol.Rtol*math.Abs(xs[j])
				if math.Abs(xs[j]-ys[j]) > 2*max(near, tol.Atol+tol.Rtol*math.Abs(ys[j])) {
					all = append(all, spot{i, from + j, xs[j], near})
				}
			}
		}
	}
	return all
}

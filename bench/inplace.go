package bench

import (
	"bytes"
	"fmt"
	"slices"

	"fisub/bench/worker"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// An expected output is what the reference gives. Of one that is an input changed in place, such as a pool of states,
// only those slots are compared, an index of the first axis each, that the reference changes; all others must hold
// what they held, to the bit.
type expected struct {
	*tensor.Tensor
	before *tensor.Tensor // that input before the call; nil of an output with memory of its own
	slots  []int          // those that are compared, in order
}

// expectedOf adds to what the reference gives what the inputs held.
func expectedOf(def *trace.Definition, want []*tensor.Tensor, inputs []workloads.Input) []expected {
	all := make([]expected, len(want))
	for i, name := range def.Outputs.Keys()[:len(want)] {
		all[i].Tensor = want[i]
		if input, ok := def.InPlace(name); ok {
			all[i].before = inputs[input].Tensor
			all[i].slots = changedSlots(all[i].before, want[i])
		}
	}
	return all
}

// changedSlots are the indices of the first axis at which two tensors of one type differ.
func changedSlots(a, b *tensor.Tensor) (slots []int) {
	for i := range a.Shape[0] {
		if !bytes.Equal(slotOf(a, i), slotOf(b, i)) {
			slots = append(slots, i)
		}
	}
	return slots
}

// slotOf are the bytes at an index of the first axis.
func slotOf(t *tensor.Tensor, i int) []byte {
	size := len(t.Data) / t.Shape[0]
	return t.Data[i*size : (i+1)*size]
}

// part is t as far as it is compared.
func (e expected) part(t *tensor.Tensor) *tensor.Tensor {
	if e.before == nil || len(e.slots) == e.Shape[0] {
		return t
	}
	p := &tensor.Tensor{DType: t.DType, Shape: slices.Clone(t.Shape)}
	p.Shape[0] = len(e.slots)
	for _, slot := range e.slots {
		p.Data = append(p.Data, slotOf(t, slot)...)
	}
	return p
}

// whole is the index in the whole tensor of an element of the part that is compared.
func (e expected) whole(index int) int {
	if e.before == nil || index < 0 {
		return index
	}
	size := e.Len() / e.Shape[0]
	return e.slots[index/size]*size + index%size
}

// compare judges got, which has the expected dtype and shape, by the contest's rule.
func (e expected) compare(got *tensor.Tensor, tol tensor.Tolerance) tensor.Comparison {
	c := tensor.Compare(e.part(got), e.part(e.Tensor), tol)
	c.First.Index = e.whole(c.First.Index)
	return c
}

// unwritten tells whether an element of got is as it was before the call: what the input held, else poison.
func (e expected) unwritten(got *tensor.Tensor, index int) bool {
	bits := got.DType.Bits()
	from, to := index*bits/8, (index*bits+bits+7)/8
	if e.before != nil {
		return bytes.Equal(got.Data[from:to], e.before.Data[from:to])
	}
	return !slices.ContainsFunc(got.Data[from:to], func(b byte) bool { return b != worker.Poison })
}

// stray says which slot got has changed that the reference leaves as it was; "" for none.
func (e expected) stray(name string, got *tensor.Tensor) string {
	if e.before == nil {
		return ""
	}
	var strays []int
	for _, slot := range changedSlots(e.before, got) {
		if _, ok := slices.BinarySearch(e.slots, slot); !ok {
			strays = append(strays, slot)
		}
	}
	if len(strays) == 0 {
		return ""
	}
	size := e.Len() / e.Shape[0]
	at := strays[0] * size
	for e.unwritten(got, at) {
		at++
	}
	var pair [2][1]float64
	e.before.ReadFloat64s(pair[0][:], at)
	got.ReadFloat64s(pair[1][:], at)
	text := fmt.Sprintf("%s%v was %.6g and is %.6g; no call may write to that slot", name, coordinates(at, e.Shape),
		pair[0][0], pair[1][0])
	if n := len(strays); n > 1 {
		text += fmt.Sprintf(", nor to %s that it has changed", plain.Count(n-1, "other"))
	}
	return text
}

// judgeable refuses a definition whose outputs in place are not what expected takes: an output that is said to be an
// argument must be one input's tensor, of its dtype and shape, and no other output's.
func judgeable(def *trace.Definition) error {
	taken := map[string]bool{}
	for name, out := range def.Outputs.All() {
		if out.Param == "" {
			continue
		}
		in, ok := def.Inputs.Get(out.Param)
		if !ok || taken[out.Param] || in.Scalar || in.Optional || len(in.Shape) == 0 || in.DType != out.DType ||
			!slices.Equal(in.Shape, out.Shape) {
			return fmt.Errorf("definition %s: output %s is said to be the argument %s, which must be an input, not optional, "+
				"of the same dtype and shape, and no other output's: fisub does not judge it", def.Name, name, out.Param)
		}
		taken[out.Param] = true
	}
	return nil
}

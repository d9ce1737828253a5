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

// An expected output is an output of the reference. If it is an input changed in place, such as a pool of states,
// only the slots (indices of the first axis) that the reference changes are compared; all others must stay
// bit-identical.
type expected struct {
	*tensor.Tensor
	before *tensor.Tensor // the input before the call; nil for an output with its own memory
	slots  []int          // the slots to compare, in order
}

// expectedOf combines the reference's outputs with the contents of the inputs before the call.
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

// changedSlots returns the indices of the first axis at which two tensors of one type differ.
func changedSlots(a, b *tensor.Tensor) (slots []int) {
	for i := range a.Shape[0] {
		if !bytes.Equal(slotOf(a, i), slotOf(b, i)) {
			slots = append(slots, i)
		}
	}
	return slots
}

// slotOf returns the bytes at index i of the first axis.
func slotOf(t *tensor.Tensor, i int) []byte {
	size := len(t.Data) / t.Shape[0]
	return t.Data[i*size : (i+1)*size]
}

// part returns the slots of t to compare.
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

// whole converts an element index in the compared part to an index in the whole tensor.
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

// unwritten reports whether an element of got is as it was before the call: the input's value, or poison.
func (e expected) unwritten(got *tensor.Tensor, index int) bool {
	bits := got.DType.Bits()
	from, to := index*bits/8, (index*bits+bits+7)/8
	if e.before != nil {
		return bytes.Equal(got.Data[from:to], e.before.Data[from:to])
	}
	return !slices.ContainsFunc(got.Data[from:to], func(b byte) bool { return b != worker.Poison })
}

// stray describes the first slot that got has changed and the reference has not, or returns "".
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
	text := fmt.Sprintf("%s%v changed from %.6g to %.6g; calls must not write to that slot", name,
		coordinates(at, e.Shape), e.before.Float64(at), got.Float64(at))
	if n := len(strays); n > 1 {
		text += fmt.Sprintf("; %s changed in total", plain.Count(n-1, "other"))
	}
	return text
}

// judgeable rejects definitions with in-place outputs that expected cannot represent: the output's argument must be a
// tensor input of its dtype and shape that no other output uses.
func judgeable(def *trace.Definition) error {
	taken := map[string]bool{}
	for name, out := range def.Outputs.All() {
		if out.Param == "" {
			continue
		}
		in, ok := def.Inputs.Get(out.Param)
		if !ok || taken[out.Param] || in.Scalar || in.Optional || len(in.Shape) == 0 || in.DType != out.DType ||
			!slices.Equal(in.Shape, out.Shape) {
			return fmt.Errorf("definition %s: output %s names the argument %s: want a required input of the same dtype and "+
				"shape, used by one output", def.Name, name, out.Param)
		}
		taken[out.Param] = true
	}
	return nil
}

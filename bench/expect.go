package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A referenceError means that the expected outputs of one workload are unavailable: no verdict on the solution.
type referenceError struct {
	definition string
	err        error
}

func (e *referenceError) Error() string { return "reference of " + e.definition + ": " + e.err.Error() }
func (e *referenceError) Unwrap() error { return e.err }

// referenceTimeout limits one call of a Python reference, which may loop over tokens.
const referenceTimeout = 30 * time.Minute

// A pyReference runs a definition's own reference in a separate worker process, so that the solution's process never
// holds expected outputs.
type pyReference struct {
	*process
	seed uint64 // Shared.Seed
}

// run returns the outputs of the reference for the inputs of load. Its error is a *referenceError, or ctx's.
func (p *pyReference) run(ctx context.Context, load *worker.Tensors, size int64) ([]*tensor.Tensor, error) {
	var want []*tensor.Tensor
	err := p.call(ctx, load, &p.out, size, func(written []worker.FileTensor) error {
		outs, unmap, err := p.out.read(written)
		if err != nil {
			return err
		}
		defer unmap()
		for i, o := range outs {
			if o.tensor == nil {
				return fmt.Errorf("output %s: the format has no dtype %s", p.def.Outputs.Keys()[i], o.dtype)
			}
			t := *o.tensor
			t.Data = slices.Clone(t.Data) // the next call overwrites it
			want = append(want, &t)
		}
		return nil
	})
	return want, err
}

// call makes a call with the inputs of load and has read take its outputs from out. Its error is a *referenceError, or
// ctx's.
func (p *pyReference) call(ctx context.Context, load *worker.Tensors, out *outFile, size int64,
	read func(written []worker.FileTensor) error) error {
	limit, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	var written []worker.FileTensor
	err := p.open(ctx)
	if err == nil {
		err = out.room(size)
	}
	if err == nil {
		err = p.load(limit, load)
	}
	if err == nil {
		written, err = p.client.Run(limit, out.f)
	}
	if err == nil {
		p.client.TakeLog()
		err = read(written)
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	text := withLog(err, strings.TrimSpace(p.log())).Error()
	p.end() // after any error, such as a lack of memory, the next workload gets a new process
	return &referenceError{p.def.Name, errors.New(text)}
}

// open makes the process ready, on the CPU if torch cannot use the GPU. The worker lives until ctx ends.
func (p *pyReference) open(ctx context.Context) error {
	if p.buildErr == nil && !p.running() {
		err := p.start(ctx, ctx)
		if worker.KindOf(err) == worker.Machine && p.kind != "emu" {
			p.kind, p.opts.Ordinal = "emu", 0
			err = p.start(ctx, ctx)
		}
		if err != nil {
			return err
		}
	}
	return p.ready(ctx, ctx)
}

// ReferenceSolution returns the reference of def as a solution, with the names used by the official harness.
func ReferenceSolution(def *trace.Definition) *trace.Solution {
	return &trace.Solution{Name: def.Name + "__reference", Definition: def.Name, Author: "__builtin__",
		Spec:    trace.BuildSpec{Language: trace.Python, TargetHardware: []string{"cuda"}, EntryPoint: "main.py::run"},
		Sources: []trace.SourceFile{{Path: "main.py", Content: def.Reference}}}
}

// isReference reports whether sol is just the reference of def.
func isReference(sol *trace.Solution, def *trace.Definition) bool {
	return len(sol.Sources) == 1 && sol.Sources[0].Content == def.Reference && sol.Spec.Language == trace.Python
}

// returning returns def as its reference implements it: all outputs are returned and no input changes.
func returning(def *trace.Definition) *trace.Definition {
	own := *def
	own.Outputs = trace.Map[trace.TensorSpec]{}
	for name, out := range def.Outputs.All() {
		out.Param = ""
		own.Outputs.Set(name, out)
	}
	return &own
}

// A noReferenceError is ErrNoReference with its reason.
type noReferenceError struct {
	definition string
	err        error
}

func (e *noReferenceError) Error() string {
	return fmt.Sprintf("%s: %v: %v", e.definition, ErrNoReference, e.err)
}
func (e *noReferenceError) Unwrap() error        { return e.err }
func (e *noReferenceError) Is(target error) bool { return target == ErrNoReference }

// newReference returns the Python reference of the definition or, if f is not nil, functions of it. If no Python can
// run it, the error is ErrNoReference with the reason.
func newReference(ctx context.Context, s *Shared, f *trace.Functions, stamper *stamper) (*pyReference, error) {
	def := returning(s.Definition)
	sol := ReferenceSolution(def)
	if f != nil {
		def, sol = functionsSolution(def, f)
	}
	p, err := newProcess(ctx, s, def, sol)
	if err != nil {
		return nil, &noReferenceError{s.Definition.Name, err}
	}
	p.opts = device.Options{Ordinal: s.Device.Ordinal,
		CacheDir: filepath.Join(s.Device.CacheDir, "reference")} // submissions cannot write there
	p.stamper = stamper
	return &pyReference{p, s.Seed}, nil
}

// An expected output is an output of the reference. If it is an input changed in place, such as a pool of states,
// only the slots (indices of the first axis) that the reference changes are compared; all others must stay
// bit-identical.
type expected struct {
	*tensor.Tensor
	before *tensor.Tensor // the input before the call; nil for an output with its own memory
	slots  []int          // the slots to compare, in order

	made *inputs // functions of the definition judge the outputs for these; nil otherwise. All else is then empty.
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
	return !slices.ContainsFunc(got.Data[from:to], func(b byte) bool { return b != worker.PoisonOf(got.DType) })
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

package bench

import (
	"context"
	"fmt"
	"slices"

	"fisub/bench/worker"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// Inputs are the inputs of one trial of a workload, with their description for the worker. Equal trials share one.
type inputs struct {
	*workloads.Inputs
	def     *trace.Definition
	load    *worker.Tensors
	outputs []worker.FileTensor // as declared
	size    int64               // total of the declared outputs in their file, in bytes
	bytes   int64               // total of the tensors, including copies for restoring
	want    []expected          // nil before the reference ran
	made    *made               // nil unless functions of the definition made them
	release func()              // frees the memory of those that functions made; may be nil
}

// Close releases the tensors.
func (in *inputs) Close() error {
	if in.release != nil {
		in.release()
	}
	return in.Inputs.Close()
}

// openInputs opens the inputs of w for a trial, counted from 0, with the functions of the definition if it has some.
// The caller closes them.
func openInputs(ctx context.Context, s *Shared, functions *pyReference, e evaluator, w *trace.Workload, trial int) (
	*inputs, error) {
	if e == byFunctions {
		in, err := functions.inputs(ctx, s.Definition, w, nil)
		if err == nil {
			in.want = []expected{{made: in}}
		}
		return in, err
	}
	opened, err := s.Load(ctx, s.Definition, w, trial)
	if err != nil {
		return nil, err
	}
	in := &inputs{Inputs: opened, def: s.Definition}
	if functions != nil {
		err = functions.fill(ctx, in, w, trial)
	}
	if err == nil {
		err = in.describe(e)
	}
	if err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

// describe sets the worker's description: the inputs, and the outputs as the definition declares them.
func (in *inputs) describe(e evaluator) error {
	def := in.def
	in.load = &worker.Tensors{AnyCount: e == sparseAttention, Guard: guard}
	shapes := map[string][]int{}
	for _, v := range in.Values {
		value := worker.Value{Scalar: v.Scalar}
		if v.Tensor != nil {
			value.Tensor = fileTensor(v)
			shapes[v.Name] = v.Tensor.Shape
			in.bytes += int64(len(v.Tensor.Data))
		}
		in.load.Inputs = append(in.load.Inputs, value)
	}
	axes, err := def.BindAxes(shapes)
	if err != nil {
		return err
	}
	for name, spec := range def.Outputs.All() {
		shape, err := def.Shape(spec, axes)
		if err != nil {
			return fmt.Errorf("output %s: %w", name, err)
		}
		n, ok := tensor.Elements(shape)
		bytes, fits := spec.DType.Bytes(n)
		if !ok || !fits || bytes > 1<<40 {
			return fmt.Errorf("output %s: shape %v is out of range", name, shape)
		}
		out := worker.FileTensor{DType: spec.DType.String(), Shape: shape, Offset: in.size, Bytes: bytes}
		value := worker.Value{Tensor: &out}
		if input, ok := def.InPlace(name); ok {
			value.InPlace = &input // and a copy of this size is kept for restoring
		}
		in.outputs = append(in.outputs, out)
		in.load.Outputs = append(in.load.Outputs, value)
		in.size += (int64(bytes) + 255) &^ 255
		in.bytes += int64(bytes)
	}
	return nil
}

// moved returns the number of bytes that a call must at least read and write: every tensor in full, except that a
// pool of states counts only the slots with given indices, and an output changed in place only the changed slots.
func (in *inputs) moved() (read, written int64) {
	if in.made != nil {
		return in.bytes, in.made.returned
	}
	changed := map[*tensor.Tensor]int64{} // by input
	for i, out := range in.outputs {
		bytes := int64(out.Bytes)
		if i < len(in.want) && in.want[i].before != nil {
			bytes = slotBytes(in.want[i].before, len(in.want[i].slots))
			changed[in.want[i].before] = bytes
		}
		written += bytes
	}
	for _, v := range in.Values {
		if v.Tensor == nil {
			continue
		}
		bytes, inPlace := changed[v.Tensor]
		if at, ok := in.def.Slots(v.Name); ok && in.Values[at].Tensor != nil {
			slots := in.Values[at].Tensor.Ints()
			slices.Sort(slots)
			slots = slices.DeleteFunc(slices.Compact(slots), func(slot int) bool { return slot < 0 })
			bytes = slotBytes(v.Tensor, len(slots))
		} else if !inPlace {
			bytes = int64(len(v.Tensor.Data))
		}
		read += bytes
	}
	return read, written
}

// slotBytes returns the size of n slots, which are indices of the first axis.
func slotBytes(t *tensor.Tensor, n int) int64 {
	if n == 0 || t.Shape[0] == 0 {
		return 0
	}
	return int64(n * (len(t.Data) / t.Shape[0]))
}

// contents returns the tensor of each input, nil for other inputs.
func (in *inputs) contents() []*worker.FileTensor {
	all := make([]*worker.FileTensor, len(in.load.Inputs))
	for i, v := range in.load.Inputs {
		all[i] = v.Tensor
	}
	return all
}

func fileTensor(v workloads.Input) *worker.FileTensor {
	return &worker.FileTensor{DType: v.Tensor.DType.String(), Shape: v.Tensor.Shape, File: v.File, Path: v.Path,
		Offset: v.Offset, Bytes: len(v.Tensor.Data)}
}

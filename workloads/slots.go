package workloads

import (
	"errors"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

// slots returns the fill of an input with the state pool's slot for each row to read or to write. No slot occurs twice
// in the inputs of a workload; the first row reads the last slot. About every fourth row except the first reads slot
// -1, unless the definition stores states by row. About every eighth written state goes to slot -1.
func slots(def *trace.Definition, axes map[string]int, pool trace.TensorSpec, s random.Stream,
	name string, shape []int) (fill, error) {
	extents, err := def.Shape(pool, axes)
	if err != nil {
		return nil, err
	}
	n, ok := tensor.Elements(shape)
	if !ok || len(shape) == 0 || len(extents) == 0 {
		return nil, errors.New("no pool, or no rows")
	}
	rows, size := shape[0], extents[0]
	begin := 0 // offset of this input's slots in order
	if name != "initial_state_indices" {
		begin = rows
	}
	if n > size-begin || size > maxEntry {
		return nil, errors.New("the pool has too few slots")
	}
	order := make([]float32, size)
	choose(s, order, size)
	for i, slot := range order {
		if slot == float32(size-1) {
			order[0], order[i] = order[i], order[0]
		}
	}
	_, states := def.Outputs.Get("intermediate_states")
	_, buffer := def.Inputs.Get("intermediate_states_buffer")
	return func(s random.Stream, dst []float32, first int) {
		for i := range dst {
			at := first + i
			dst[i] = order[begin+at]
			switch {
			case begin == 0 && !states && !buffer && at > 0 && s.Intn(at, 4) == 0, begin > 0 && s.Intn(at, 8) == 0:
				dst[i] = -1
			}
		}
	}, nil
}

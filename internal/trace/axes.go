package trace

import (
	"fmt"
	"slices"
	"strings"
)

// An axisError is a mismatch of shapes and axes, in the contest's wording.
type axisError string

func (e axisError) Error() string { return string(e) }

func axisErrorf(format string, args ...any) error { return axisError(fmt.Sprintf(format, args...)) }

// BindAxes infers the var axes from the shapes of the inputs, as the contest's runner does. It ignores scalars and
// inputs without a shape, and does not compare the sizes of const axes.
func (d *Definition) BindAxes(shapes map[string][]int) (map[string]int, error) {
	axes := make(map[string]int)
	for name, spec := range d.Inputs.All() {
		shape, ok := shapes[name]
		if !ok || spec.Scalar {
			continue
		}
		if len(shape) != len(spec.Shape) {
			return nil, axisErrorf("Input '%s''s defined dimension is %d but the actual dimension is %d", name,
				len(spec.Shape), len(shape))
		}
		for i, axis := range spec.Shape {
			if a, ok := d.Axes.Get(axis); !ok || a.Const {
				continue
			}
			if n, bound := axes[axis]; bound && n != shape[i] {
				return nil, axisErrorf("Axis '%s' has different values for different input tensors: %d and %d", axis, n, shape[i])
			}
			axes[axis] = shape[i]
		}
	}
	var missing []string
	for axis, a := range d.Axes.All() {
		if _, ok := axes[axis]; !ok && !a.Const {
			missing = append(missing, "'"+axis+"'")
		}
	}
	if len(missing) > 0 {
		return nil, axisErrorf("Missing values for variable axes: {%s}", strings.Join(missing, ", "))
	}
	return axes, nil
}

// Shape returns the concrete shape of spec, with the sizes of var axes from axes. It is nil for a scalar, and empty but
// not nil for a 0-d tensor.
func (d *Definition) Shape(spec TensorSpec, axes map[string]int) ([]int, error) {
	if spec.Scalar {
		return nil, nil
	}
	shape := make([]int, len(spec.Shape))
	for i, axis := range spec.Shape {
		a, ok := d.Axes.Get(axis)
		if !ok {
			return nil, axisErrorf("undefined axis '%s'", axis)
		}
		if shape[i] = a.Value; a.Const {
			continue
		}
		if shape[i], ok = axes[axis]; !ok {
			return nil, axisErrorf("Missing value for variable axis '%s'", axis)
		}
		if shape[i] < 0 {
			return nil, axisErrorf("axis '%s' is negative: %d", axis, shape[i])
		}
	}
	return shape, nil
}

// InPlace returns the index of the input that the named output overwrites. ok is false for an output with its own
// memory, including one whose param names no input.
func (d *Definition) InPlace(output string) (input int, ok bool) {
	spec, _ := d.Outputs.Get(output)
	input = slices.Index(d.Inputs.Keys(), spec.Param)
	return max(input, 0), input >= 0 && spec.Param != ""
}

// Slots returns the index of the input that lists which slots (indices of the first axis) of the named input a call
// uses: the integer input of the same name plus "_indices". Negative elements are padding. ok is false for an input
// that a call uses in full.
func (d *Definition) Slots(input string) (indices int, ok bool) {
	pool, _ := d.Inputs.Get(input)
	name := input + "_indices"
	spec, ok := d.Inputs.Get(name)
	if !ok || spec.Scalar || spec.DType.IsFloat() || len(pool.Shape) == 0 {
		return 0, false
	}
	return slices.Index(d.Inputs.Keys(), name), true
}

// Returned returns the outputs with their own memory, in order. A solution returns them, or takes them after the
// inputs.
func (d *Definition) Returned() Map[TensorSpec] {
	var own Map[TensorSpec]
	for name, spec := range d.Outputs.All() {
		if _, ok := d.InPlace(name); !ok {
			own.Set(name, spec)
		}
	}
	return own
}

// Arguments returns the parameter names of a solution in destination-passing style, in order.
func (d *Definition) Arguments() []string {
	own := d.Returned()
	return append(slices.Clone(d.Inputs.Keys()), own.Keys()...)
}

package bench

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// mostLikened is the largest number of elements of an output that likeness looks at.
const mostLikened = 1 << 22

// likeness says how a wrong output resembles the expected one: with two axes exchanged, by a constant factor, or except
// for rows of an input.
func likeness(def *trace.Definition, values []workloads.Input, got *tensor.Tensor, want expected, tol tensor.Tolerance,
	axes []string) string {
	n := want.Len()
	if want.before != nil || got.Len() != n || n > mostLikened || !got.DType.IsFloat() {
		return ""
	}
	made, right := make([]float64, n), make([]float64, n)
	got.ReadFloat64s(made, 0)
	want.ReadFloat64s(right, 0)
	largest := 0.0
	for _, x := range right {
		largest = math.Max(largest, math.Abs(x))
	}
	least, most := math.Inf(1), math.Inf(-1) // ratios of large elements
	for i, x := range right {
		if math.Abs(x) > largest/8 {
			least, most = math.Min(least, made[i]/x), math.Max(most, made[i]/x)
		}
	}
	if most-least < 0.02*math.Abs(least) && math.Abs(least) > 0.01 && !math.IsInf(most, 0) {
		return fmt.Sprintf("; all are about %.3g times the expected", (least+most)/2)
	}
	for b := range want.Shape {
		for a := range b {
			if want.Shape[a] != want.Shape[b] || want.Shape[a] == 1 {
				continue
			}
			i := 0
			for i < n {
				at := coordinates(i, want.Shape)
				at[a], at[b] = at[b], at[a]
				if differs(made[flat(at, want.Shape)], right[i], tol) {
					break
				}
				i++
			}
			if i == n {
				return fmt.Sprintf("; right with %s and %s exchanged", axisName(axes, a), axisName(axes, b))
			}
		}
	}
	if n > mostExplained {
		return ""
	}
	e := outputError{axes: axes, shape: want.Shape, off: make([]float64, n), wrong: make([]bool, n)}
	for i := range made {
		e.off[i], e.wrong[i] = made[i]-right[i], differs(made[i], right[i], tol)
	}
	return e.inputs(def, values)
}

// differs reports whether got differs from want by more than the tolerance.
func differs(got, want float64, tol tensor.Tolerance) bool {
	off := math.Abs(got - want)
	return !(off <= tol.Atol || off <= tol.Rtol*math.Abs(want))
}

// flat is the inverse of coordinates.
func flat(at, shape []int) (index int) {
	for d, n := range shape {
		index = index*n + at[d]
	}
	return index
}

// An outputError is the error of a wrong output.
type outputError struct {
	axes  []string
	shape []int
	off   []float64
	wrong []bool // beyond the tolerance
}

// mostExplained is the largest number of elements of a tensor that explanations by inputs look at, to save time.
const mostExplained = 1 << 20

// leastWidth is the length of the shortest rows that are compared: short ones are parallel by chance.
const leastWidth = 16

// inputs names the inputs whose rows along an axis of the output explain the error.
func (e *outputError) inputs(def *trace.Definition, values []workloads.Input) (text string) {
	for d, n := range e.shape {
		for _, x := range values {
			spec, _ := def.Inputs.Get(x.Name)
			for along, axis := range spec.Shape {
				if axis != e.axes[d] || n < leastWidth || x.Tensor == nil || !x.Tensor.DType.IsFloat() {
					continue
				}
				how, part := "", "term with"
				if one, any := e.consists(d, x.Tensor, spec.Shape, along); one {
					how, part = "multiple of a row", "factor of"
				} else if any {
					how = "combination of rows"
				}
				if how != "" {
					text += fmt.Sprintf("; each row of the error along %s is a %s of %s: is a %s %[3]s wrong?",
						axisName(e.axes, d), how, x.Name, part)
				}
			}
		}
	}
	return text
}

// consists reports whether each row of the error along axis d with a wrong element is a multiple of one row of x, or a
// combination of such rows, along an axis of the same length. They have the output's indices of the other axes that
// both have, by name. Both are false if x has enough of them to come close to any error.
func (e *outputError) consists(d int, x *tensor.Tensor, names []string, along int) (one, any bool) {
	common := make([]int, len(e.shape)) // by axis of the output, that of x, or -1
	for c := range common {
		common[c] = -1
		for f, name := range names {
			if c != d && f != along && common[c] < 0 && name == e.axes[c] && !slices.Contains(common[:c], f) {
				common[c] = f
			}
		}
	}
	n := 1 // rows that one error is compared with
	for f, m := range x.Shape {
		if f != along && !slices.Contains(common, f) {
			n *= m
		}
	}
	if n > e.shape[d]/4 || x.Len() > mostExplained {
		return false, false
	}
	values := make([]float64, x.Len())
	x.ReadFloat64s(values, 0)
	// By the common indices: the rows, and a basis of what they span. Both have unit length.
	rows, bases := map[int][][]float64{}, map[int][][]float64{}
	for from, elements := range rowsAlong(x.Shape, along) {
		at := make([]int, len(e.shape))
		for c, f := range common {
			if f >= 0 {
				at[c] = from[f]
			}
		}
		key := flat(at, e.shape)
		if row := pick(values, elements); unit(row, 0) {
			rows[key] = append(rows[key], slices.Clone(row))
			for _, b := range bases[key] {
				remove(row, b)
			}
			if unit(row, 1e-6) {
				bases[key] = append(bases[key], row)
			}
		}
	}
	one = true
	for at, elements := range rowsAlong(e.shape, d) {
		if !slices.ContainsFunc(elements, func(i int) bool { return e.wrong[i] }) {
			continue
		}
		for c, f := range common {
			if f < 0 {
				at[c] = 0
			}
		}
		key := flat(at, e.shape)
		row := pick(e.off, elements)
		most := 0.01 * dot(row, row)
		one = one && slices.ContainsFunc(rows[key], func(r []float64) bool {
			rest := slices.Clone(row)
			remove(rest, r)
			return dot(rest, rest) < most
		})
		for _, b := range bases[key] {
			remove(row, b)
		}
		if !(dot(row, row) < most) { // also of NaN
			return false, false
		}
	}
	return one, true
}

// rowsAlong yields the rows of a tensor along an axis: the indices of its first element, and the numbers of all.
func rowsAlong(shape []int, axis int) iter.Seq2[[]int, []int] {
	return func(yield func(at, elements []int) bool) {
		n, _ := tensor.Elements(shape)
		stride, _ := tensor.Elements(shape[axis+1:])
		row := make([]int, shape[axis])
		for first := range n {
			if first/stride%len(row) != 0 {
				continue
			}
			for i := range row {
				row[i] = first + i*stride
			}
			if !yield(coordinates(first, shape), row) {
				return
			}
		}
	}
}

func pick(values []float64, elements []int) []float64 {
	row := make([]float64, len(elements))
	for i, at := range elements {
		row[i] = values[at]
	}
	return row
}

func dot(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

// remove subtracts from row its part along a vector of unit length.
func remove(row, along []float64) {
	part := dot(row, along)
	for i := range row {
		row[i] -= part * along[i]
	}
}

// unit scales row to unit length. It returns false if row is not longer than least, or not finite.
func unit(row []float64, least float64) bool {
	length := math.Sqrt(dot(row, row))
	for i := range row {
		row[i] /= length
	}
	return length > least && !math.IsInf(length, 0)
}

// leastPart is the least number of elements of which scaling finds a factor: with few, several inputs explain an error.
const leastPart = 256

// scaling says which multiple of the difference between right and without got contains, or returns "". There is one
// factor, or one for each index of the first axes: as few as explain the error.
func scaling(got, right, without *tensor.Tensor, axes []string) string {
	n := right.Len()
	made, whole, rest := make([]float64, n), make([]float64, n), make([]float64, n)
	got.ReadFloat64s(made, 0)
	right.ReadFloat64s(whole, 0)
	without.ReadFloat64s(rest, 0)
	var each []string
	for d, m := range right.Shape {
		size, _ := tensor.Elements(right.Shape[d:])
		if size < leastPart {
			break
		}
		before, left, factor := 0.0, 0.0, 0.0
		for from := 0; from < n; from += size {
			part, actual := make([]float64, size), make([]float64, size)
			for i := range part {
				at := from + i
				part[i], actual[i] = whole[at]-rest[at], made[at]-rest[at]
				before += (made[at] - whole[at]) * (made[at] - whole[at])
			}
			if unit := dot(part, part); unit > 0 {
				factor = dot(actual, part) / unit
			}
			for i := range part {
				left += (actual[i] - factor*part[i]) * (actual[i] - factor*part[i])
			}
		}
		switch {
		case !(left < 0.01*before):
		case len(each) > 0:
			return "the expected times a factor of each " + strings.Join(each, ", ")
		case math.Abs(factor) < 0.01:
			return "missing"
		default:
			return fmt.Sprintf("%.3g times the expected", factor)
		}
		if m > 1 {
			each = append(each, axisName(axes, d))
		}
	}
	return ""
}

package bench

import (
	"fmt"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// diagnose describes the wrong elements of each output: how many, which ones, and how many were left unwritten, if
// that is known. It stops at an output that cannot be compared.
func diagnose(def *trace.Definition, got []output, want []expected, tol tensor.Tolerance, passed bool) string {
	var text strings.Builder
	i := 0
	for name, spec := range def.Outputs.All() {
		if i == len(got) || got[i].tensor == nil || !slices.Equal(got[i].shape, want[i].Shape) {
			break
		}
		w := spreadOf(got[i].tensor, want[i], tol)
		// In an output with its own memory, poison proves an unwritten element only if the output was passed and
		// poison is NaN.
		if want[i].before == nil && (!passed || !spec.DType.IsFloat() || spec.DType.Bits() < 8) {
			w.unwritten = 0
		}
		if w.count > 0 {
			fmt.Fprintf(&text, "%s: %s\n", name, w.text(spec.Shape))
		}
		i++
	}
	return text.String()
}

// A spread counts the wrong elements of an output by index along each axis.
type spread struct {
	shape            []int
	count, unwritten int
	of               [][]int
}

func spreadOf(got *tensor.Tensor, want expected, tol tensor.Tolerance) *spread {
	w := &spread{shape: want.Shape}
	for _, n := range w.shape {
		w.of = append(w.of, make([]int, n))
	}
	tensor.Wrong(want.part(got), want.part(want.Tensor), tol, func(index int) {
		index = want.whole(index)
		w.count++
		if want.unwritten(got, index) {
			w.unwritten++
		}
		for d, at := range coordinates(index, w.shape) {
			w.of[d][at]++
		}
	})
	return w
}

// text describes the spread with the names of the axes.
func (w *spread) text(axes []string) string {
	text := fmt.Sprintf("%s wrong", plain.Count(w.count, "element"))
	if w.unwritten == w.count {
		text = fmt.Sprintf("%s never written", plain.Count(w.count, "element"))
	} else if w.unwritten > 0 {
		text += fmt.Sprintf(", %d of them never written", w.unwritten)
	}
	room, where := 1, []string{}
	for d, counts := range w.of {
		indices := []int{}
		for at, n := range counts {
			if n > 0 {
				indices = append(indices, at)
			}
		}
		room *= len(indices)
		if len(indices) < len(counts) {
			name := axes[d]
			if slices.Index(axes, name) != d || slices.Contains(axes[d+1:], name) { // a square matrix
				name += fmt.Sprintf(" (axis %d)", d)
			}
			where = append(where, name+" "+indexText(indices, len(counts)))
		}
	}
	all := room == w.count
	if len(where) == 0 {
		if all {
			return text + ": all elements"
		}
		return text + ", spread over the whole tensor"
	}
	if all {
		return text + ": all with " + strings.Join(where, " and ")
	}
	return text + ": only with " + strings.Join(where, " and ")
}

// indexText describes indices below n, which are sorted.
func indexText(indices []int, n int) string {
	first, last := indices[0], indices[len(indices)-1]
	step := indices[min(1, len(indices)-1)] - first
	switch {
	case len(indices) == 1:
		return fmt.Sprintf("index %d", first)
	case last-first+1 == len(indices) && last == n-1:
		return fmt.Sprintf("index %d or more", first)
	case last-first+1 == len(indices):
		return fmt.Sprintf("index %d to %d", first, last)
	default:
		for i, at := range indices {
			if at != first+i*step {
				return fmt.Sprintf("index among %d of %d from %d to %d", len(indices), n, first, last)
			}
		}
		return fmt.Sprintf("every index %d plus a multiple of %d", first, step)
	}
}

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A verdict is the combined result of all trials of one workload.
type verdict struct {
	status      trace.Status
	correctness *trace.Correctness // nil if the status forbids it
	detail      string             // one line about the first failure, or ""
	matched     float64            // smallest matched ratio
	log         string             // output of the callee or the compiler
	maps        []event.Map        // of the first wrong outputs
	found       *event.Finding     // about a trial after a right one, or a slot that the call must not change; may be nil
	rows        string             // about rows that are wrong within the matched ratio, or ""
}

func newVerdict() verdict {
	return verdict{status: trace.Passed, correctness: &trace.Correctness{}, matched: 1}
}

// judge adds the outputs of one trial to v, by the rules of the contest's default evaluator (spec section 5). It
// returns false when the verdict is final: a wrong shape or dtype or a non-finite output ends the evaluation, while a
// mere mismatch does not.
func (v *verdict) judge(names []string, got []output, want []expected, tol tensor.Tolerance) bool {
	for i, g := range got {
		w := want[i]
		if !v.fits(names[i], g, w.Tensor) {
			return false
		}
		c := w.compare(g.tensor, tol)
		if c.Inf || c.NaN {
			*v = verdict{status: trace.IncorrectNumerical, detail: describe(names[i], c, w.Shape),
				correctness: &trace.Correctness{MaxAbsoluteError: c.MaxAbs, MaxRelativeError: c.MaxRel}}
			return false
		}
		v.correctness.MaxAbsoluteError = pythonMax(v.correctness.MaxAbsoluteError, c.MaxAbs)
		v.correctness.MaxRelativeError = pythonMax(v.correctness.MaxRelativeError, c.MaxRel)
		v.matched = min(v.matched, c.Matched)
		v.rows = cmp.Or(v.rows, wrongIn(names[i], c, w, g.tensor, tol))
		if stray := w.stray(names[i], g.tensor); stray != "" {
			v.status = trace.IncorrectNumerical
			v.detail = cmp.Or(v.detail, stray)
			v.found = &event.Finding{Check: outsideWrite, Text: stray}
		}
		if !c.OK {
			v.status = trace.IncorrectNumerical
			if v.detail == "" {
				v.detail = describe(names[i], c, w.Shape)
			}
		}
	}
	return true
}

// fits sets the verdict if an output's shape or dtype differs from w's.
func (v *verdict) fits(name string, g output, w *tensor.Tensor) bool {
	if !slices.Equal(g.shape, w.Shape) {
		*v = verdict{status: trace.IncorrectShape, detail: fmt.Sprintf("%s: shape %v, expected %v", name, g.shape, w.Shape)}
		return false
	}
	if g.dtype != w.DType.String() {
		*v = verdict{status: trace.IncorrectDType, detail: fmt.Sprintf("%s: dtype %s, expected %s", name, g.dtype, w.DType)}
		return false
	}
	return true
}

// describe names the first failed element and the number of failed ones.
func describe(name string, c tensor.Comparison, shape []int) string {
	at := fmt.Sprintf("%s%v", name, coordinates(c.First.Index, shape))
	switch {
	case c.Inf || c.NaN:
		return fmt.Sprintf("%s is %v, expected %.6g; %d of %d elements are wrong or not finite", at, c.First.Got,
			c.First.Want, c.Failed, c.Len)
	default:
		return fmt.Sprintf("%s is %.6g, expected %.6g; %d of %d elements are wrong", at, c.First.Got, c.First.Want,
			c.Failed, c.Len)
	}
}

// leastRow is the number of elements below which a row is not judged on its own.
const leastRow = 8

// wrongIn describes the rows, along the last axis, of which more than half of the elements are wrong, if the matched
// ratio permits them. Rounding errors are spread over all rows; a row is wrong if a token was left out.
func wrongIn(name string, c tensor.Comparison, want expected, got *tensor.Tensor, tol tensor.Tolerance) string {
	width := rowOf(want.Tensor)
	if !c.OK || c.Failed <= width/2 || width < leastRow {
		return ""
	}
	failed := map[int]int{} // by row of the compared part
	tensor.Wrong(want.part(got), want.part(want.Tensor), tol, func(index int, _ float32) { failed[index/width]++ })
	var rows []int
	for row, n := range failed {
		if n > width/2 {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return ""
	}
	at := want.whole(slices.Min(rows) * width)
	return fmt.Sprintf("%s: most elements are wrong in %d of %s, first in row %v; the contest requires only %g %% of all "+
		"elements", name, len(rows), plain.Count(c.Len/width, "row"),
		coordinates(at/width, want.Shape[:len(want.Shape)-1]), 100*tol.MatchedRatio)
}

// coordinates converts a row-major index into one index per dimension.
func coordinates(index int, shape []int) []int {
	at := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		at[i] = index % shape[i]
		index /= shape[i]
	}
	return at
}

// pythonMax keeps the older value if the new one is NaN, like max(old, new) in Python.
func pythonMax(old, next float64) float64 {
	if next > old {
		return next
	}
	return old
}

// diagnose describes the wrong elements of each output: how many, which ones, and how many were left unwritten, if
// that is known. maps show the same. It stops at an output that cannot be compared.
func diagnose(def *trace.Definition, values []workloads.Input, got []output, want []expected, tol tensor.Tolerance,
	passed bool) (text string, maps []event.Map) {
	var right []string
	i := 0
	for name, spec := range def.Outputs.All() {
		if i == len(got) || got[i].tensor == nil || !slices.Equal(got[i].shape, want[i].Shape) {
			break
		}
		// In an output with its own memory, poison proves an unwritten element only if the output was passed and
		// poison is NaN.
		poisoned := want[i].before != nil || passed && spec.DType.IsFloat() && spec.DType.Bits() >= 8
		if w := spreadOf(got[i].tensor, want[i], tol, poisoned); w.count > 0 {
			m := w.chart(spec.Shape)
			m.Output, m.Text = name, w.text(spec.Shape)
			m.Text += likeness(def, values, got[i].tensor, want[i], tol, spec.Shape)
			text += fmt.Sprintf("%s: %s\n", name, m.Text)
			maps = append(maps, m)
		} else {
			right = append(right, name)
		}
		i++
	}
	if text != "" && len(right) > 0 {
		text += fmt.Sprintf("%s: right\n", strings.Join(right, ", "))
	}
	return text, maps
}

// A spread counts the wrong elements of an output by index along each axis, and by cell over each pair of axes.
type spread struct {
	shape            []int
	count, unwritten int
	of               [][]int
	classes          [len(event.MapClasses)]int
	grids            []grid
}

// spreadOf compares got with want. poisoned means that an element with its old bits was not written.
func spreadOf(got *tensor.Tensor, want expected, tol tensor.Tolerance, poisoned bool) *spread {
	w := &spread{shape: want.Shape, grids: gridsOf(want)}
	for _, n := range w.shape {
		w.of = append(w.of, make([]int, n))
	}
	at := make([]int, len(w.shape))
	tensor.Wrong(want.part(got), want.part(want.Tensor), tol, func(index int, times float32) {
		index = want.whole(index)
		w.count++
		unwritten := poisoned && want.unwritten(got, index)
		if unwritten {
			w.unwritten++
		}
		class := classOf(times, unwritten)
		w.classes[class]++
		for d := len(at) - 1; d >= 0; d-- {
			at[d] = index % w.shape[d]
			index /= w.shape[d]
			w.of[d][at[d]]++
		}
		for i := range w.grids {
			w.grids[i].add(at, class)
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
	room, even, where := 1, false, []string{}
	for d, counts := range w.of {
		indices := []int{}
		for at, n := range counts {
			if n > 0 {
				indices = append(indices, at)
			}
		}
		room *= len(indices)
		if len(indices) < len(counts) {
			if text := indexText(indices, len(counts)); text != "" {
				where = append(where, axisName(axes, d)+" "+text)
			} else {
				even = true
			}
		}
	}
	all := room == w.count && !even
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

// axisName returns the name of axis d, with its number if another axis has that name too.
func axisName(axes []string, d int) string {
	name := axes[d]
	if slices.Index(axes, name) != d || slices.Contains(axes[d+1:], name) { // a square matrix
		name += fmt.Sprintf(" (axis %d)", d)
	}
	return name
}

// indexText describes indices below n, which are sorted and not all. It returns "" if they are spread over the axis.
func indexText(indices []int, n int) string {
	first, last := indices[0], indices[len(indices)-1]
	switch {
	case len(indices) == 1:
		return fmt.Sprintf("index %d", first)
	case last-first+1 == len(indices) && last == n-1:
		return fmt.Sprintf("index %d or more", first)
	case last-first+1 == len(indices):
		return fmt.Sprintf("index %d to %d", first, last)
	}
	if text := periodText(indices, n); text != "" {
		return text
	}
	if 2*len(indices) > n {
		return ""
	}
	return fmt.Sprintf("index among %d of %d from %d to %d", len(indices), n, first, last)
}

// periodText describes indices below n that repeat at least twice with a period, or returns "". Of several residues the
// period is at most a warp.
func periodText(indices []int, n int) string {
	first, step := indices[0], indices[1]-indices[0]
	regular := first < step && indices[len(indices)-1]+step >= n
	for i, at := range indices {
		regular = regular && at == first+i*step
	}
	if regular {
		return fmt.Sprintf("every index %d plus a multiple of %d", first, step)
	}
	for period := 2; period <= 32 && 2*period <= n; period++ {
		wrong, expected := make([]bool, period), 0
		for _, at := range indices {
			wrong[at%period] = true
		}
		var list []string
		for r, w := range wrong {
			if w {
				list = append(list, fmt.Sprint(r))
				expected += (n-1-r)/period + 1
			}
		}
		if expected == len(indices) {
			text := strings.Join(list, ", ")
			first := slices.Index(wrong, true)
			if len(list) > 3 && !slices.Contains(wrong[first:first+len(list)], false) {
				text = fmt.Sprintf("%d to %d", first, first+len(list)-1)
			}
			return fmt.Sprintf("index mod %d is %s", period, text)
		}
	}
	return ""
}

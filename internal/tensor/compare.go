package tensor

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// A Tolerance is the contest's acceptance rule: an element fails if its absolute error exceeds Atol and its relative
// error exceeds Rtol; an output passes if the share of other elements is at least MatchedRatio.
type Tolerance struct {
	Atol, Rtol   float64
	MatchedRatio float64 // in (0, 1]; 0 means 1
}

// An Element is one element of a comparison.
type Element struct {
	Index     int // row-major
	Got, Want float64
}

// A Comparison is the verdict on one output.
type Comparison struct {
	// MaxAbs and MaxRel are the largest errors, in float32 arithmetic. The relative error is |got-want| / (|want|+1e-8).
	// As with torch's max, one NaN error (a NaN in want, or for MaxRel an infinity) makes the maximum NaN. Both are
	// infinite if got contains an infinity, else NaN if it contains a NaN.
	MaxAbs, MaxRel float64
	Matched        float64 // share of elements that did not fail; 1 for an empty output
	Len, Failed    int     // elements; those that failed or are not finite in got
	First          Element // first failed element; Index -1 without one
	Inf, NaN       bool    // got contains such an element
	OK             bool
}

// Compare applies the contest's rule. A non-finite value in got fails the whole output; a finite one matches a NaN or
// infinity in want. Compare panics if the lengths differ. It does not check shapes and dtypes.
func Compare(got, want *Tensor, tol Tolerance) Comparison {
	n := got.Len()
	if n != want.Len() {
		panic(fmt.Sprintf("tensor: comparing %v with %v", got.Shape, want.Shape))
	}
	const grain = 1 << 17 // minimum number of elements per goroutine
	workers := max(1, min(runtime.GOMAXPROCS(0), n/grain))
	parts := make([]Comparison, workers)
	var wg sync.WaitGroup
	for w := range parts {
		wg.Go(func() { parts[w] = compareRange(got, want, tol, n*w/workers, n*(w+1)/workers) })
	}
	wg.Wait()

	c := parts[0]
	c.Len = n
	for _, p := range parts[1:] {
		c.MaxAbs, c.MaxRel = max(c.MaxAbs, p.MaxAbs), max(c.MaxRel, p.MaxRel) // NaN wins over infinity
		if p.Failed == 0 {
			continue
		}
		if c.Failed == 0 {
			c.First = p.First
		}
		c.Failed += p.Failed
		c.Inf, c.NaN = c.Inf || p.Inf, c.NaN || p.NaN
	}
	c.Matched = 1
	if n > 0 {
		c.Matched = min(1, max(0, 1-float64(c.Failed)/float64(n)))
	}
	c.OK = !c.Inf && !c.NaN && c.Matched >= cmp.Or(tol.MatchedRatio, 1)
	switch {
	case c.Inf:
		c.MaxAbs, c.MaxRel = math.Inf(1), math.Inf(1)
	case c.NaN:
		c.MaxAbs, c.MaxRel = math.NaN(), math.NaN()
	}
	return c
}

func compareRange(got, want *Tensor, tol Tolerance, from, to int) Comparison {
	c := Comparison{First: Element{Index: -1}}
	atol, rtol := float32(tol.Atol), float32(tol.Rtol)
	var maxAbs, maxRel float32
	var nanAbs, nanRel bool
	var xs, ys [1024]float32
	for ; from < to; from += len(xs) {
		n := min(len(xs), to-from)
		got.ReadFloat32s(xs[:n], from)
		want.ReadFloat32s(ys[:n], from)
		for i, x := range xs[:n] {
			y := ys[i]
			abs := abs32(x - y)
			rel := abs / (abs32(y) + 1e-8)
			if abs > maxAbs {
				maxAbs = abs
			}
			if rel > maxRel {
				maxRel = rel
			}
			if abs <= math.MaxFloat32 && (abs <= atol || rel <= rtol) { // a finite error means finite x and y
				continue
			}
			nanAbs, nanRel = nanAbs || abs != abs, nanRel || rel != rel
			inf, nan := abs32(x) > math.MaxFloat32, x != x
			if !inf && !nan && !(abs > atol && rel > rtol) {
				continue
			}
			c.Inf, c.NaN = c.Inf || inf, c.NaN || nan
			if c.Failed == 0 {
				c.First = Element{Index: from + i, Got: float64(x), Want: float64(y)}
			}
			c.Failed++
		}
	}
	c.MaxAbs, c.MaxRel = float64(maxAbs), float64(maxRel)
	if nanAbs {
		c.MaxAbs = math.NaN()
	}
	if nanRel {
		c.MaxRel = math.NaN()
	}
	return c
}

// Wrong calls tell for each element of got that Compare counts as failed, in order. times is the error in multiples of
// the tolerance: the element would be correct if Atol and Rtol were times as large. It is NaN if got is not finite.
func Wrong(got, want *Tensor, tol Tolerance, tell func(index int, times float32)) {
	atol, rtol := float32(tol.Atol), float32(tol.Rtol)
	var xs, ys [1024]float32
	for from := 0; from < got.Len(); from += len(xs) {
		n := min(len(xs), got.Len()-from)
		got.ReadFloat32s(xs[:n], from)
		want.ReadFloat32s(ys[:n], from)
		for i, x := range xs[:n] {
			abs := abs32(x - ys[i])
			rel := abs / (abs32(ys[i]) + 1e-8)
			switch {
			case !(abs32(x) <= math.MaxFloat32):
				tell(from+i, float32(math.NaN()))
			case abs > atol && rel > rtol:
				tell(from+i, min(abs/atol, rel/rtol))
			}
		}
	}
}

func abs32(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }

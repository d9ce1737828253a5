package tensor

import (
	"math"
	"runtime"
	"testing"
)

var (
	inf = math.Inf(1)
	nan = math.NaN()
)

func floats(d DType, xs ...float64) *Tensor {
	t := New(d, len(xs))
	t.WriteFloat64s(xs, 0)
	return t
}

func same(a, b float64) bool { return a == b || a != a && b != b }

func TestCompare(t *testing.T) {
	contest := Tolerance{Atol: 0.01, Rtol: 0.01}
	none := Element{Index: -1}
	for _, c := range []struct {
		name      string
		dtype     DType
		got, want []float64
		tol       Tolerance
		c         Comparison
	}{
		{"empty", Float32, nil, nil, contest, Comparison{Matched: 1, First: none, OK: true}},
		{"equal", Float32, []float64{1, -2, 0}, []float64{1, -2, 0}, contest,
			Comparison{Matched: 1, Len: 3, First: none, OK: true}},
		{"zero and negative zero", Float32, []float64{0}, []float64{math.Copysign(0, -1)}, contest,
			Comparison{Matched: 1, Len: 1, First: none, OK: true}},
		// 0.5 against 0: both errors exceed; rel = 0.5/1e-8 in float32.
		{"one element wrong", Float32, []float64{1, 0.5, 2, 3}, []float64{1, 0, 2, 3}, contest,
			Comparison{MaxAbs: 0.5, MaxRel: float64(float32(0.5) / float32(1e-8)), Matched: 0.75, Len: 4, Failed: 1,
				First: Element{1, 0.5, 0}}},
		// 1 of 100: abs exceeds atol, rel = 1/100 does not exceed rtol.
		{"relative error within", Float32, []float64{101}, []float64{100}, Tolerance{0.01, 0.011, 0},
			Comparison{MaxAbs: 1, MaxRel: float64(float32(1) / float32(100)), Matched: 1, Len: 1, First: none,
				OK: true}},
		{"absolute error within", Float32, []float64{0.0078125}, []float64{0}, contest,
			Comparison{MaxAbs: 0.0078125, MaxRel: float64(float32(0.0078125) / float32(1e-8)), Matched: 1, Len: 1, First: none, OK: true}},
		// The thresholds are float32 values. An error equal to a threshold is accepted.
		{"exactly atol", Float32, []float64{0.01}, []float64{0}, contest,
			Comparison{MaxAbs: float64(float32(0.01)), MaxRel: float64(float32(0.01) / float32(1e-8)), Matched: 1, Len: 1,
				First: none, OK: true}},
		{"next after atol", Float32, []float64{float64(math.Nextafter32(0.01, 1))}, []float64{0}, contest,
			Comparison{MaxAbs: float64(math.Nextafter32(0.01, 1)), MaxRel: float64(math.Nextafter32(0.01, 1) / float32(1e-8)),
				Len: 1, Failed: 1,
				First: Element{0, float64(math.Nextafter32(0.01, 1)), 0}}},
		{"first and worst", Float32, []float64{1, 2, 9, 4}, []float64{0, 2, 3, 3}, contest,
			Comparison{MaxAbs: 6, MaxRel: 1e8, Matched: 0.25, Len: 4, Failed: 3, First: Element{0, 1, 0}}},
		{"matched ratio reached", Float32, []float64{1, 2, 3, 5}, []float64{1, 2, 3, 4}, Tolerance{0.01, 0.01, 0.75},
			Comparison{MaxAbs: 1, MaxRel: 0.25, Matched: 0.75, Len: 4, Failed: 1, First: Element{3, 5, 4}, OK: true}},
		{"matched ratio missed", Float32, []float64{1, 2, 3, 5}, []float64{1, 2, 3, 4}, Tolerance{0.01, 0.01, 0.7501},
			Comparison{MaxAbs: 1, MaxRel: 0.25, Matched: 0.75, Len: 4, Failed: 1, First: Element{3, 5, 4}}},
		{"infinity in got", Float32, []float64{1, -inf}, []float64{1, -inf}, contest,
			Comparison{MaxAbs: inf, MaxRel: inf, Matched: 0.5, Len: 2, Failed: 1, First: Element{1, -inf, -inf}, Inf: true}},
		{"NaN in got", Float32, []float64{nan, 1}, []float64{nan, 1}, contest,
			Comparison{MaxAbs: nan, MaxRel: nan, Matched: 0.5, Len: 2, Failed: 1, First: Element{0, nan, nan}, NaN: true}},
		{"infinity before NaN", Float32, []float64{nan, inf}, []float64{1, 1}, contest,
			Comparison{MaxAbs: inf, MaxRel: inf, Len: 2, Failed: 2, First: Element{0, nan, 1},
				Inf: true, NaN: true}},
		{"non-finite got despite the ratio", Float32, []float64{nan, 1}, []float64{0, 1}, Tolerance{1, 1, 0.5},
			Comparison{MaxAbs: nan, MaxRel: nan, Matched: 0.5, Len: 2, Failed: 1, First: Element{0, nan, 0}, NaN: true}},
		{"NaN in want matches", Float32, []float64{5, 1}, []float64{nan, 1}, contest,
			Comparison{MaxAbs: nan, MaxRel: nan, Matched: 1, Len: 2, First: none, OK: true}},
		{"infinity in want matches", Float32, []float64{5, 1}, []float64{inf, 1}, contest,
			Comparison{MaxAbs: inf, MaxRel: nan, Matched: 1, Len: 2, First: none, OK: true}},
		{"NaN in want and one wrong", Float32, []float64{5, 1}, []float64{nan, 2}, contest,
			Comparison{MaxAbs: nan, MaxRel: nan, Matched: 0.5, Len: 2, Failed: 1, First: Element{1, 1, 2}}},
		{"infinite tolerance", Float32, []float64{5, inf}, []float64{inf, 1}, Tolerance{inf, inf, 0},
			Comparison{MaxAbs: inf, MaxRel: inf, Matched: 0.5, Len: 2, Failed: 1, First: Element{1, inf, 1}, Inf: true}},
		{"overflowing difference", Float32, []float64{3e38}, []float64{-3e38}, contest,
			Comparison{MaxAbs: inf, MaxRel: inf, Len: 1, Failed: 1,
				First: Element{0, float64(float32(3e38)), float64(float32(-3e38))}}},
		// 2^-149 against 0: rel = 2^-149/1e-8, a denormal quotient that float32 holds.
		{"denormal", Float32, []float64{0x1p-149}, []float64{0}, Tolerance{},
			Comparison{MaxAbs: 0x1p-149, MaxRel: float64(float32(0x1p-149) / float32(1e-8)), Len: 1, Failed: 1,
				First: Element{0, 0x1p-149, 0}}},
		{"bfloat16", BFloat16, []float64{1, 1.0078125}, []float64{1, 1}, contest,
			Comparison{MaxAbs: 0.0078125, MaxRel: 0.0078125, Matched: 1, Len: 2, First: none, OK: true}},
		{"int32", Int32, []float64{7, 8}, []float64{7, 9}, contest,
			Comparison{MaxAbs: 1, MaxRel: float64(float32(1) / float32(9)), Matched: 0.5, Len: 2, Failed: 1,
				First: Element{1, 8, 9}}},
	} {
		got := Compare(floats(c.dtype, c.got...), floats(c.dtype, c.want...), c.tol)
		if !equal(got, c.c) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, got, c.c)
		}
	}
}

func equal(a, b Comparison) bool {
	for _, p := range [][2]float64{{a.MaxAbs, b.MaxAbs}, {a.MaxRel, b.MaxRel}, {a.First.Got, b.First.Got},
		{a.First.Want, b.First.Want}} {
		if !same(p[0], p[1]) {
			return false
		}
	}
	return a.Matched == b.Matched && a.Len == b.Len && a.Failed == b.Failed && a.First.Index == b.First.Index &&
		a.Inf == b.Inf && a.NaN == b.NaN && a.OK == b.OK
}

// A large comparison is split over goroutines. The verdict must not depend on the boundaries.
func TestCompareParts(t *testing.T) {
	n := 1<<19 + 7
	want, got := New(Float32, n), New(Float32, n)
	for _, c := range []struct {
		first, worst int
	}{{0, n - 1}, {n - 1, n - 1}, {n / 2, n / 2}, {5, 6}, {n/4 + 1, n / 3}} {
		clear(got.Data)
		got.WriteFloat32s([]float32{1}, c.first)
		got.WriteFloat32s([]float32{2}, c.worst)
		r := Compare(got, want, Tolerance{Atol: 0.01, Rtol: 0.01})
		if r.First.Index != c.first || r.MaxAbs != 2 || r.OK {
			t.Errorf("first %d, worst %d: got %+v", c.first, c.worst, r)
		}
		want.WriteFloat32s([]float32{float32(nan)}, n-1)
		if r := Compare(got, want, Tolerance{Atol: 0.01, Rtol: 0.01}); r.MaxAbs == r.MaxAbs {
			t.Errorf("first %d, worst %d, NaN in want: got MaxAbs %v, want NaN", c.first, c.worst, r.MaxAbs)
		}
		want.WriteFloat32s([]float32{0}, n-1)
	}
}

// The maxima match torch's for any position of an infinity and a NaN in the tensor.
func TestCompareNaNWithInfinity(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	n := 1 << 19
	for _, at := range [][2]int{{0, n - 1}, {n - 1, 0}} {
		want, got := New(Float32, n), New(Float32, n)
		want.WriteFloat32s([]float32{float32(inf)}, at[0])
		want.WriteFloat32s([]float32{float32(nan)}, at[1])
		if r := Compare(got, want, Tolerance{Atol: 0.01, Rtol: 0.01}); !math.IsNaN(r.MaxAbs) || !math.IsNaN(r.MaxRel) ||
			!r.OK {
			t.Errorf("infinity at %d, NaN at %d of the expected output: got %+v, want errors of NaN", at[0], at[1], r)
		}
	}
}

// Wrong tells the smaller one of both errors, in multiples of its tolerance.
func TestWrong(t *testing.T) {
	huge := math.MaxFloat32
	got := floats(Float32, 1.5, 3, 1.25, 8, nan, inf, -huge, 4)
	want := floats(Float32, 1, 1, 1, 2, 1, -inf, huge, inf)
	for _, tc := range []struct {
		tol  Tolerance
		want map[int]float64
	}{
		{Tolerance{Atol: 0.25, Rtol: 0.25}, map[int]float64{0: 2, 1: 8, 3: 12, 4: nan, 5: nan, 6: inf}},
		{Tolerance{Atol: 0, Rtol: 0.25}, map[int]float64{0: 2, 1: 8, 3: 12, 4: nan, 5: nan, 6: inf}},
		{Tolerance{Atol: 1, Rtol: 0}, map[int]float64{1: 2, 3: 6, 4: nan, 5: nan, 6: inf}},
		{Tolerance{}, map[int]float64{0: inf, 1: inf, 2: inf, 3: inf, 4: nan, 5: nan, 6: inf}},
	} {
		n := 0
		Wrong(got, want, tc.tol, func(index int, times float32) {
			if !same(float64(times), tc.want[index]) {
				t.Errorf("%+v: element %d: got %v, want %v", tc.tol, index, times, tc.want[index])
			}
			n++
		})
		if c := Compare(got, want, tc.tol); n != len(tc.want) || c.Failed != n {
			t.Errorf("%+v: got %d elements, want %d, and Compare has %d", tc.tol, n, len(tc.want), c.Failed)
		}
	}
}

func TestCompareLengthPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("comparing 1 with 2 elements: no panic")
		}
	}()
	Compare(New(Float32, 1), New(Float32, 2), Tolerance{})
}

func BenchmarkCompare(b *testing.B) {
	got, want := New(Float32, 8<<20), New(Float32, 8<<20)
	b.SetBytes(int64(len(got.Data)))
	for b.Loop() {
		if !Compare(got, want, Tolerance{Atol: 0.01, Rtol: 0.01}).OK {
			b.Fatal("zeros differ")
		}
	}
}

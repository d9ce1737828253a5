package bench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads"
)

// A wrong output that resembles the expected one is described so, and right outputs are named.
func TestLikeness(t *testing.T) {
	def := &trace.Definition{}
	def.Outputs.Set("y", trace.TensorSpec{Shape: []string{"head", "dim", "dim"}, DType: tensor.Float32})
	def.Outputs.Set("z", trace.TensorSpec{Shape: []string{"head"}, DType: tensor.Float32})
	shape := []int{2, 8, 8}
	value := func(h, i, j int) float32 { return float32(math.Sin(float64(1 + 64*h + 8*i + j))) }
	for _, tc := range []struct {
		value func(h, i, j int) float32
		want  string
	}{
		{func(h, i, j int) float32 { return value(h, j, i) },
			"y: 112 elements wrong, spread over the whole tensor; right with dim (axis 1) and dim (axis 2) exchanged\nz: right\n"},
		{func(h, i, j int) float32 { return -11.3 * value(h, i, j) },
			"y: 128 elements wrong: all elements; all are about -11.3 times the expected\nz: right\n"},
		{func(h, i, j int) float32 { return value(h, i, j) + 1 }, "y: 128 elements wrong: all elements\nz: right\n"},
	} {
		got, want, z := tensor.New(tensor.Float32, shape...), tensor.New(tensor.Float32, shape...), tensor.New(tensor.Float32, 2)
		for i := range got.Len() {
			at := coordinates(i, shape)
			got.WriteFloat32s([]float32{tc.value(at[0], at[1], at[2])}, i)
			want.WriteFloat32s([]float32{value(at[0], at[1], at[2])}, i)
		}
		outs := []output{{dtype: "float32", shape: shape, tensor: got}, {dtype: "float32", shape: []int{2}, tensor: z}}
		text, _ := diagnose(def, nil, outs, []expected{{Tensor: want}, {Tensor: z}}, tensor.Tolerance{Atol: 0.01, Rtol: 0.01}, true)
		if text != tc.want {
			t.Errorf("got %q, want %q", text, tc.want)
		}
	}
}

// An error that consists of rows of an input is described so. Which rows of x go with those of y is not known by name.
func TestErrorOfInput(t *testing.T) {
	def := &trace.Definition{}
	def.Inputs.Set("x", trace.TensorSpec{Shape: []string{"batch", "group", "dim"}, DType: tensor.Float32})
	def.Inputs.Set("many", trace.TensorSpec{Shape: []string{"other", "dim"}, DType: tensor.Float32})
	def.Outputs.Set("y", trace.TensorSpec{Shape: []string{"batch", "head", "dim"}, DType: tensor.Float32})
	r := rand.New(rand.NewPCG(1, 1))
	random := func(shape ...int) *tensor.Tensor {
		x := tensor.New(tensor.Float32, shape...)
		for i := range x.Len() {
			x.WriteFloat32s([]float32{float32(r.NormFloat64())}, i)
		}
		return x
	}
	const batch, group, head, dim = 2, 2, 4, 32
	x, many, want := random(batch, group, dim), random(dim, dim), random(batch, head, dim)
	row := func(b, g, i int) float64 { return x.Float64((b*group+g)*dim + i) }
	for _, tc := range []struct {
		name string
		off  func(b, h, i int) float64
		want string
	}{
		{"a factor of each head", func(b, h, i int) float64 { return float64(h+1) * row(b, h/2, i) },
			"multiple of a row of x: is a factor of x wrong?"},
		{"a factor of some heads", func(b, h, i int) float64 { return float64(h) * row(b, h/2, i) },
			"multiple of a row of x: is a factor of x wrong?"},
		{"another row", func(b, h, i int) float64 { return row(b, h%2, i) - row(b, h/2, i) },
			"combination of rows of x: is a term with x wrong?"},
		{"a row of another batch", func(b, h, i int) float64 { return row(1-b, h/2, i) }, ""},
		{"a row and noise", func(b, h, i int) float64 { return row(b, h/2, i) + 0.2*r.NormFloat64() }, ""},
		{"noise", func(b, h, i int) float64 { return r.NormFloat64() }, ""},
		{"one element", func(b, h, i int) float64 { return float64(bit(b+h+i == 0)) }, ""},
		{"not finite", func(b, h, i int) float64 { return row(b, h/2, i) / float64(1-bit(i == 3)) }, ""},
	} {
		got := tensor.New(tensor.Float32, want.Shape...)
		for i := range got.Len() {
			at := coordinates(i, got.Shape)
			got.WriteFloat32s([]float32{float32(want.Float64(i) + tc.off(at[0], at[1], at[2]))}, i)
		}
		text, _ := diagnose(def, []workloads.Input{{Name: "x", Tensor: x}, {Name: "many", Tensor: many}},
			[]output{{dtype: "float32", shape: got.Shape, tensor: got}}, []expected{{Tensor: want}},
			tensor.Tolerance{Atol: 0.01, Rtol: 0.01}, true)
		_, text, _ = strings.Cut(text, ";")
		if tc.want != "" {
			tc.want = " each row of the error along dim is a " + tc.want + "\n"
		}
		if text != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, text, tc.want)
		}
	}
}

// The part of an output that depends on an input may be scaled as a whole or by index, or be missing.
func TestScaling(t *testing.T) {
	axes, shape := []string{"batch", "head", "dim", "dim"}, []int{1, 4, 16, 16}
	r := rand.New(rand.NewPCG(1, 1))
	for _, tc := range []struct {
		name   string
		factor func(at []int) float64
		noise  float64
		want   string
	}{
		{"one", func([]int) float64 { return -0.5 }, 0, "-0.5 times the expected"},
		{"none", func([]int) float64 { return 0 }, 0.01, "missing"},
		{"one of each head", func(at []int) float64 { return float64(1 + at[1]) }, 0.01, "the expected times a factor of each head"},
		{"one of each row", func(at []int) float64 { return float64(at[1]*16 + at[2]) }, 0, ""}, // rows are short
		{"noise", func([]int) float64 { return 1 }, 1, ""},
		{"one and noise", func([]int) float64 { return 2 }, 0.5, ""},
		{"not finite", func(at []int) float64 { return 2 / float64(at[3]) }, 0, ""},
	} {
		got, right := tensor.New(tensor.Float32, shape...), tensor.New(tensor.Float32, shape...)
		without := tensor.New(tensor.Float32, shape...)
		for i := range got.Len() {
			rest, part := r.NormFloat64(), r.NormFloat64()
			made := rest + part*tc.factor(coordinates(i, shape)) + tc.noise*r.NormFloat64()
			for x, v := range map[*tensor.Tensor]float64{got: made, right: rest + part, without: rest} {
				x.WriteFloat32s([]float32{float32(v)}, i)
			}
		}
		if text := scaling(got, right, without, axes); text != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, text, tc.want)
		}
	}
}

// The wrong elements are described by the definition's axes, and unwritten ones are distinguished from computed NaNs.
func TestDiagnose(t *testing.T) {
	def := &trace.Definition{}
	def.Outputs.Set("y", trace.TensorSpec{Shape: []string{"batch", "head", "dim"}, DType: tensor.Float32})
	shape := []int{4, 2, 8}
	nan, poison := float32(math.NaN()), math.Float32frombits(math.MaxUint32)
	for _, tc := range []struct {
		name  string
		value func(b, h, d int) float32 // 1 is right
		want  string
	}{
		{"right", func(int, int, int) float32 { return 1 }, ""},
		{"one block a head", func(b, _, _ int) float32 { return []float32{1, poison}[min(b, 1)] },
			"y: 48 elements never written: all with batch index 1 or more\n"},
		{"one head", func(_, h, _ int) float32 { return float32(1 + h) }, "y: 32 elements wrong: all with head index 1\n"},
		{"everything", func(int, int, int) float32 { return nan }, "y: 64 elements wrong: all elements\n"},
		{"a stride", func(_, _, d int) float32 { return float32(1 + d%2) },
			"y: 32 elements wrong: all with dim every index 1 plus a multiple of 2\n"},
		{"one element", func(b, h, d int) float32 { return float32(1 + b/3*h*(d/7)) },
			"y: 1 element wrong: all with batch index 3 and head index 1 and dim index 7\n"},
		{"a diagonal", func(b, h, d int) float32 { return float32(1 + (b+h+d)%2) },
			"y: 32 elements wrong, spread over the whole tensor\n"},
		{"a tail, half of it unwritten", func(_, h, d int) float32 {
			return [][]float32{{1, nan}, {1, poison}}[h][d/6]
		}, "y: 16 elements wrong, 8 of them never written: all with dim index 6 or more\n"},
		{"a middle, in part", func(b, _, d int) float32 {
			if b == 1 || b == 2 && d > 0 {
				return 2
			}
			return 1
		}, "y: 30 elements wrong: only with batch index 1 to 2\n"},
		{"a head, but one index", func(_, h, d int) float32 { return float32(1 + h*min(1, max(d-3, 3-d))) },
			"y: 28 elements wrong: only with head index 1\n"},
	} {
		got, want := tensor.New(tensor.Float32, shape...), tensor.New(tensor.Float32, shape...)
		for i := range got.Len() {
			at := coordinates(i, shape)
			got.WriteFloat32s([]float32{tc.value(at[0], at[1], at[2])}, i)
			want.WriteFloat32s([]float32{1}, i)
		}
		outs := []output{{dtype: "float32", shape: shape, tensor: got}}
		text, _ := diagnose(def, nil, outs, []expected{{Tensor: want}}, tensor.Tolerance{Atol: 0.01, Rtol: 0.01}, true)
		if text != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, text, tc.want)
		}
	}
}

// Indices along an axis are described by a range or a period, or not at all if they are spread over it.
func TestIndexText(t *testing.T) {
	such := func(n int, wrong func(i int) bool) (indices []int) {
		for i := range n {
			if wrong(i) {
				indices = append(indices, i)
			}
		}
		return indices
	}
	for _, tc := range []struct {
		n     int
		wrong func(i int) bool
		want  string
	}{
		{128, func(i int) bool { return i != 40 }, ""},
		{128, func(i int) bool { return i%4 != 3 }, "index mod 4 is 0, 1, 2"},
		{128, func(i int) bool { return i%32 >= 8 }, "index mod 32 is 8 to 31"},
		{100, func(i int) bool { return i%8 == 1 || i%8 == 6 }, "index mod 8 is 1, 6"},
		{16, func(i int) bool { return i%2 == 1 }, "every index 1 plus a multiple of 2"},
		{16, func(i int) bool { return i == 1 || i == 3 || i == 5 }, "index among 3 of 16 from 1 to 5"},
		{128, func(i int) bool { return i%64 == 5 }, "every index 5 plus a multiple of 64"},
		{128, func(i int) bool { return i > 40 && i < 60 && i%7 != 3 }, "index among 16 of 128 from 41 to 58"},
		{9, func(i int) bool { return i == 0 || i == 2 || i == 3 || i == 6 }, "index among 4 of 9 from 0 to 6"},
		{16, func(i int) bool { return i%8 > 4 || i%8 == 0 }, "index mod 8 is 0, 5, 6, 7"},
		{8, func(i int) bool { return i > 2 }, "index 3 or more"},
	} {
		if got := indexText(such(tc.n, tc.wrong), tc.n); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

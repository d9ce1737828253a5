package bench

import (
	"math"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

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
	} {
		got, want := tensor.New(tensor.Float32, shape...), tensor.New(tensor.Float32, shape...)
		for i := range got.Len() {
			at := coordinates(i, shape)
			got.WriteFloat32s([]float32{tc.value(at[0], at[1], at[2])}, i)
			want.WriteFloat32s([]float32{1}, i)
		}
		outs := []output{{dtype: "float32", shape: shape, tensor: got}}
		text := diagnose(def, outs, []expected{{Tensor: want}}, tensor.Tolerance{Atol: 0.01, Rtol: 0.01}, true)
		if text != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, text, tc.want)
		}
	}
}

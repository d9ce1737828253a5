package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// mapOf returns the map of an output with axes and shape. value returns how far an element is off, in multiples of the
// tolerance.
func mapOf(t *testing.T, axes []string, shape []int, value func(at []int) float32, want func(e *expected)) event.Map {
	t.Helper()
	def := &trace.Definition{}
	def.Outputs.Set("y", trace.TensorSpec{Shape: axes, DType: tensor.Float32})
	got, right := tensor.New(tensor.Float32, shape...), expected{Tensor: tensor.New(tensor.Float32, shape...)}
	if want != nil {
		want(&right)
	}
	for i := range got.Len() {
		got.WriteFloat32s([]float32{value(coordinates(i, shape))}, i)
	}
	_, maps := diagnose(def, nil, []output{{dtype: "float32", shape: shape, tensor: got}}, []expected{right},
		tensor.Tolerance{Atol: 1}, true)
	if len(maps) == 0 {
		return event.Map{}
	}
	m := maps[0]
	if m.Output != "y" || len(m.Cells) != m.Down.Cells() || len(m.Cells[0]) != m.Across.Cells() || m.Text == "" {
		t.Errorf("got an inconsistent map %+v", m)
	}
	return m
}

// The two axes are those along which the wrong elements are spread least evenly, also if all elements are wrong by
// different amounts.
func TestMapAxes(t *testing.T) {
	axes, shape := []string{"batch", "head", "row", "row"}, []int{3, 4, 8, 8}
	for _, tc := range []struct {
		name         string
		value        func(at []int) float32
		down, across string
	}{
		{"right", func([]int) float32 { return 1 }, "", ""},
		{"rows of a head", func(at []int) float32 { return float32(2 * bit(at[1] == 2 && at[2] > 5)) }, "head", "row (axis 2)"},
		{"the last column of the last sequence", func(at []int) float32 { return float32(2 * bit(at[0] == 2 && at[3] == 7)) },
			"batch", "row (axis 3)"},
		{"a triangle", func(at []int) float32 { return float32(2 * bit(at[2] < at[3])) }, "row (axis 2)", "row (axis 3)"},
		{"a head", func(at []int) float32 { return float32(2 * bit(at[1] == 2)) }, "batch", "head"},
		{"all elements", func([]int) float32 { return 5 }, "batch", "head"},
		{"all elements, some more than others", func(at []int) float32 { return float32(5 + 500*bit(at[1] == 2 && at[3] > 5)) },
			"head", "row (axis 3)"},
	} {
		m := mapOf(t, axes, shape, tc.value, nil)
		if m.Down.Name != tc.down || m.Across.Name != tc.across {
			t.Errorf("%s: got %q and %q, want %q and %q", tc.name, m.Down.Name, m.Across.Name, tc.down, tc.across)
		}
	}
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// A cell has the class of its worst element, as a capital if more than half of its elements are wrong.
func TestMapCells(t *testing.T) {
	nan, poison := float32(math.NaN()), math.Float32frombits(math.MaxUint32)
	for _, tc := range []struct {
		name   string
		axes   []string
		shape  []int
		value  func(at []int) float32
		want   func(*expected)
		cells  string // rows, separated by spaces
		counts [5]int
		down   event.MapAxis
		across event.MapAxis
		of     int // compared elements
	}{
		{name: "classes", axes: []string{"row", "k"}, shape: []int{2, 7}, value: func(at []int) float32 {
			return []float32{0, 10, 11, 100, 101, nan, poison}[at[1]] * float32(at[0]+bit(at[1] > 4))
		}, cells: ".....NU .ABBCNU", counts: [5]int{1, 2, 1, 2, 2}, down: event.MapAxis{Name: "row", Size: 2},
			across: event.MapAxis{Name: "k", Size: 7}, of: 14},
		{name: "infinity", axes: []string{"k"}, shape: []int{3}, value: func(at []int) float32 {
			return []float32{float32(math.Inf(1)), 3, float32(math.Inf(-1))}[at[0]]
		}, cells: "NAN", counts: [5]int{1, 0, 0, 2, 0}, down: event.MapAxis{Size: 1}, across: event.MapAxis{Name: "k", Size: 3}, of: 3},
		{name: "several indices in a cell", axes: []string{"one", "k"}, shape: []int{1, 128},
			value: func(at []int) float32 { return float32(2 * bit(at[1] == 4 || at[1] > 124)) },
			cells: "..a" + strings.Repeat(".", 59) + "aA", counts: [5]int{4, 0, 0, 0, 0}, down: event.MapAxis{Size: 1},
			across: event.MapAxis{Name: "k", Size: 128}, of: 128},
		{name: "a last cell with fewer indices", axes: []string{"k"}, shape: []int{130},
			value: func(at []int) float32 { return float32(2 * bit(at[0] == 129)) },
			cells: strings.Repeat(".", 43) + "A", counts: [5]int{1, 0, 0, 0, 0}, down: event.MapAxis{Size: 1},
			across: event.MapAxis{Name: "k", Size: 130}, of: 130},
		{name: "two of four slots", axes: []string{"slot", "row", "k"}, shape: []int{4, 2, 2},
			value: func(at []int) float32 { return float32(2 * bit(at[1] == 1 && at[2] == 0)) },
			want: func(e *expected) {
				e.before, e.slots = tensor.New(tensor.Float32, 4, 2, 2), []int{1, 3}
				e.before.WriteFloat32s([]float32{9, 9, 9, 9, 1, 1, 1, 1, 9, 9, 9, 9, 1, 1, 1, 1}, 0)
			},
			cells: ".. A.", counts: [5]int{2, 0, 0, 0, 0}, down: event.MapAxis{Name: "row", Size: 2},
			across: event.MapAxis{Name: "k", Size: 2}, of: 8},
		{name: "the worst of a cell", axes: []string{"row", "k", "depth"}, shape: []int{2, 2, 3}, value: func(at []int) float32 {
			return float32(bit(at[0] == 1) * []int{20, 2, 20, 0, 0, 2}[3*at[1]+at[2]])
		}, cells: ".. Ba", counts: [5]int{2, 2, 0, 0, 0}, down: event.MapAxis{Name: "row", Size: 2},
			across: event.MapAxis{Name: "k", Size: 2}, of: 12},
		{name: "a scalar", shape: []int{}, value: func([]int) float32 { return 7 }, cells: "A", counts: [5]int{1, 0, 0, 0, 0},
			down: event.MapAxis{Size: 1}, across: event.MapAxis{Size: 1}, of: 1},
		{name: "slots that the call changes", axes: []string{"slot", "k"}, shape: []int{130, 2},
			value: func(at []int) float32 { return float32(2 * bit(at[0] == 4)) },
			want: func(e *expected) {
				e.before, e.slots = tensor.New(tensor.Float32, 130, 2), []int{4, 7, 8}
				e.before.WriteFloat32s([]float32{9}, 8)
			},
			cells: ".. AA .." + strings.Repeat(" ..", 41), counts: [5]int{2, 0, 0, 0, 0},
			down: event.MapAxis{Name: "slot", Size: 130}, across: event.MapAxis{Name: "k", Size: 2}, of: 6},
		{name: "a slot that keeps its contents", axes: []string{"slot", "k"}, shape: []int{2, 2},
			value: func(at []int) float32 { return 5 },
			want: func(e *expected) {
				e.before, e.slots = tensor.New(tensor.Float32, 2, 2), []int{1}
				e.before.WriteFloat32s([]float32{0, 0, 5, 4}, 0)
			},
			cells: ".. UA", counts: [5]int{1, 0, 0, 0, 1}, down: event.MapAxis{Name: "slot", Size: 2},
			across: event.MapAxis{Name: "k", Size: 2}, of: 2},
	} {
		m := mapOf(t, tc.axes, tc.shape, tc.value, tc.want)
		if got := strings.Join(m.Cells, " "); got != tc.cells || m.Counts != tc.counts || m.Down != tc.down ||
			m.Across != tc.across || m.Elements != tc.of {
			t.Errorf("%s: got %s %v %+v %+v of %d, want %s %v %+v %+v of %d", tc.name, got, m.Counts, m.Down, m.Across,
				m.Elements, tc.cells, tc.counts, tc.down, tc.across, tc.of)
		}
	}
}

// In any map exactly the cells with a wrong element are marked, and the counts add up.
func TestMapsOfRandomErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var axes []string
		var shape []int
		for d := range 1 + r.IntN(4) {
			axes, shape = append(axes, fmt.Sprint("axis", d)), append(shape, 1+r.IntN([]int{3, 20, 200, 3}[d]))
		}
		wrong, seen := 0, map[string]bool{} // cells with a wrong element, by axes and position
		share := []float64{0.001, 0.1, 0.9}[r.IntN(3)]
		var indices [][]int
		m := mapOf(t, axes, shape, func(at []int) float32 {
			if r.Float64() > share {
				return 0
			}
			wrong++
			indices = append(indices, slices.Clone(at))
			return float32(2 + r.IntN(1000))
		}, nil)
		if wrong == 0 {
			continue
		}
		cell := func(a event.MapAxis, at []int) int {
			if d := slices.Index(axes, a.Name); d >= 0 {
				return at[d] / a.PerCell()
			}
			return 0
		}
		for _, at := range indices {
			seen[fmt.Sprint(cell(m.Down, at), cell(m.Across, at))] = true
		}
		for y, row := range m.Cells {
			for x, letter := range row {
				if marked := letter != '.'; marked != seen[fmt.Sprint(y, x)] {
					t.Fatalf("%v: cell %d, %d is %c", shape, y, x, letter)
				}
			}
		}
		if m.Wrong() != wrong {
			t.Fatalf("%v: got counts %v, want %d in total", shape, m.Counts, wrong)
		}
	}
}

// A fault has the source around its place and a second one; a Python traceback counts from its end.
func TestExcerpts(t *testing.T) {
	sol := &trace.Solution{Sources: []trace.SourceFile{{Path: "kernel.cu", Content: "a\r\nb\n\tc\nd\ne\nf\ng\nh\ni\n"},
		{Path: "sub/main.py", Content: "import x\n" + strings.Repeat("é", 300) + "\n"}}}
	for _, tc := range []struct{ text, want string }{
		{"kernel.cu:5:2: a race with kernel.cu:9:1", "[{kernel.cu 5 2 2 [b \tc d e f g h]} {kernel.cu 9 1 6 [f g h i ]}]"},
		{"kernel.cu:1: twice, kernel.cu:1:3 and in sub/main.py:1", "[{kernel.cu 1 0 1 [a b \tc d]} {sub/main.py 1 0 1 [import x " +
			strings.Repeat("é", 199) + "… ]}]"},
		{"kernel.cu(3): error: what", "[{kernel.cu 3 0 1 [a b \tc d e f]}]"},
		{"other.cu:3, kernel.cu:99 and kernel.cu:0", "[]"},
		{"nothing", "[]"},
		{"Traceback (most recent call last):\n  File \"/usr/lib/torch.py\", line 2, in f\n  File \"sub/main.py\", line 1, in run\n" +
			"  File \"sub/main.py\", line 2, in g\nValueError", "[{sub/main.py 2 0 1 [import x " + strings.Repeat("é", 199) +
			"… ]} {sub/main.py 1 0 1 [import x " + strings.Repeat("é", 199) + "… ]}]"},
	} {
		if got := fmt.Sprint(excerptsOf(sol, tc.text)); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.text, got, tc.want)
		}
	}
}

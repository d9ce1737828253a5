package tools

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fisub/internal/trace"
)

// TestShapes expects one workload of each class of axes, an odd one, and a larger one that is not too large.
func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name string
		axes []string
		all  [][]int
		want string
	}{
		{"decode", []string{"batch"}, [][]int{{1}, {1}, {4}, {8}, {16}, {48}, {64}}, "[1] [4] [64]"},
		{"an odd batch", []string{"batch"}, [][]int{{64}, {2}, {3}, {5}, {1}}, "[1] [2] [3] [64]"},
		{"one only", []string{"batch"}, [][]int{{7}, {7}}, "[7]"},
		{"prefill", []string{"tokens", "seqs"}, [][]int{{8192, 57}, {2107, 1}, {6, 1}, {14, 4}, {35, 2}, {200, 3}},
			"[6 1] [14 4] [35 2] [200 3]"},
		{"without axes", nil, [][]int{{}, {}}, "[]"},
	} {
		var ws []*trace.Workload
		for i, values := range c.all {
			w := &trace.Workload{UUID: fmt.Sprint(i)}
			for j, x := range values {
				w.Axes.Set(c.axes[j], x)
			}
			ws = append(ws, w)
		}
		var got []string
		for _, w := range Shapes(ws) {
			got = append(got, fmt.Sprint(slices.Collect(func(yield func(int) bool) {
				for _, x := range w.Axes.All() {
					if !yield(x) {
						return
					}
				}
			})))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: got %s, want %s", c.name, text, c.want)
		}
	}
}

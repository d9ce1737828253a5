package ui

import (
	"slices"
	"testing"
)

// Columns of words give way, the widest first; numbers, short words and the first column do not.
func TestFit(t *testing.T) {
	for _, tc := range []struct {
		align string
		have  []int
		width int
		want  []int
	}{
		{"lrl", []int{8, 10, 30}, 60, []int{8, 10, 30}},
		{"lrl", []int{8, 10, 40}, 60, []int{8, 10, 38}},
		{"llrl", []int{30, 20, 10, 18}, 80, []int{30, 17, 10, 17}},
		{"lrl", []int{8, 40, 20}, 40, []int{8, 40, 12}},
	} {
		got := slices.Clone(tc.have)
		if fit(got, tc.align, tc.width); !slices.Equal(got, tc.want) {
			t.Errorf("%s %v in %d: got %v, want %v", tc.align, tc.have, tc.width, got, tc.want)
		}
	}
}

package app

import (
	"strings"
	"testing"
)

// A line of doctor is broken between words, below its second column, and loses none of them.
func TestIndented(t *testing.T) {
	const line = "missing  gpu-support    built without it; needed by fisub local, fisub remote; hint: make local on a machine " +
		"with CUDA's headers builds it"
	for _, width := range []int{40, 60, 80} {
		lines := strings.Split(indented(line, width), "\n")
		for i, l := range lines {
			if len(l) > width || i > 0 && !strings.HasPrefix(l, "         ") {
				t.Errorf("width %d: got line %q", width, l)
			}
		}
		if len(lines) < 2 || strings.Join(strings.Fields(strings.Join(lines, " ")), " ") != strings.Join(strings.Fields(line), " ") {
			t.Errorf("width %d: got %q", width, lines)
		}
	}
	if got := indented(line, 200); got != line {
		t.Errorf("got %q, want it as it is", got)
	}
}

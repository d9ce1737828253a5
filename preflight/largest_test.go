package preflight

import (
	"strings"
	"testing"

	"fisub/device/nvcc"
)

// The largest block of a kernel and its local memory are in its line.
func TestLargestBlock(t *testing.T) {
	for _, tc := range []struct {
		kernel nvcc.Kernel
		most   int
		want   string
	}{
		{nvcc.Kernel{Registers: 255, Stack: 608}, 256, "255 registers, 608 bytes of local memory, 0 bytes shared, 0 constant, " +
			"at most 256 threads per block with so many registers"},
		{nvcc.Kernel{Registers: 255, MaxThreads: 128}, 128, "at most 128 threads per block"},
		{nvcc.Kernel{Registers: 64}, 1024, "64 registers, 0 bytes shared, 0 constant"},
	} {
		k := Cost("sm_100", tc.kernel)
		if k.LargestBlock != tc.most || !strings.Contains(k.Text(), tc.want) {
			t.Errorf("got %d, %q, want %d, %q", k.LargestBlock, k.Text(), tc.most, tc.want)
		}
	}
}

package app

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fisub/device/vgpu/vgputest"
	"fisub/internal/longtest"
	"fisub/remote/servertest"
)

// drawn returns the lines that a wide terminal shows after the output text.
func drawn(text string) []string {
	lines, row, col, saved := [][]rune{nil}, 0, 0, [2]int{}
	for _, part := range regexp.MustCompile(`\x1b(\[[?0-9;]*[A-Za-z]|[78])|[^\x1b]`).FindAllString(text, -1) {
		switch part {
		case "\r":
			col = 0
		case "\n":
			if row++; row == len(lines) {
				lines = append(lines, nil)
			}
		case "\x1b7":
			saved = [2]int{row, col}
		case "\x1b8":
			row, col = saved[0], saved[1]
		case "\x1b[K":
			lines[row] = lines[row][:min(col, len(lines[row]))]
		default:
			if part[0] == '\x1b' {
				continue // colour, line wrap
			}
			for len(lines[row]) <= col {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][col] = []rune(part)[0]
			col++
		}
	}
	var all []string
	for _, line := range lines {
		all = append(all, strings.TrimRight(string(line), " "))
	}
	return all
}

// A launch that takes long shows its progress on the terminal, and nothing of it remains.
func TestLaunchProgress(t *testing.T) {
	t.Run("workload", func(t *testing.T) {
		b := newRemoteBench(t, "")
		b.env = append(b.env, "TERM=xterm")
		b.change("solution/cuda/decode.cuh", "  constexpr int kLanes = C::kLanesPerRow, kRows",
			"  while (blockIdx.x == gridDim.x - 1 && clock64() >= 0) {}\n  constexpr int kLanes = C::kLanesPerRow, kRows")
		s := b.terminal(t, "local", "--device", "emu", "--limit", "1")
		s.sees("decode_kernel: ", 2)
		s.types(ctrlC)
		s.ends(exitInterrupted)
		if !regexp.MustCompile(`kernel \S*decode_kernel: \d+ of \d+ blocks, [0-9.e+-]+ blocks/s`).MatchString(s.text()) {
			t.Errorf("no progress:\n%q", s.text())
		}
		if all := strings.Join(drawn(s.text()), "\n"); strings.Contains(all, "blocks") || !strings.Contains(all, "0 of 1 PASSED") {
			t.Errorf("the terminal shows at the end:\n%s", all)
		}
		b.fisub(exitError, "local", "--device", "emu", "--limit", "1", "--timeout", "3s")
		if out := b.stderr.String(); strings.Contains(out, "blocks/s") {
			t.Errorf("without a terminal: %s", out)
		}
	})
	t.Run("program", func(t *testing.T) {
		b := newRemoteBench(t, "")
		longtest.CI(t, "compiles the library")
		if err := vgputest.Library(); err != nil {
			t.Fatal(err)
		}
		b.env = append(b.env, "TERM=xterm", "FISUB_VGPU_LIBRARY="+os.Getenv("FISUB_VGPU_LIBRARY"))
		const program = `#include <cstdio>

__global__ void slow() {
  for (long long i = 0; blockIdx.x > 0 && clock64() >= 0; i++)
    if (i % (1 << 20) == 0) printf("turn %lld\n", i >> 20);
}

int main() {
  printf("begins\n");
  slow<<<2, 1>>>();
  return cudaDeviceSynchronize();
}
`
		if err := os.WriteFile(filepath.Join(b.dir, "slow.cu"), []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		b.fisub(exitOK, "nvcc", "-o", "slow", "slow.cu")
		s := b.terminal(t, "emu", "./slow")
		const shown = "kernel slow: 1 of 2 blocks, "
		s.sees(shown, 2)
		servertest.Until(t, "output after progress", func() bool {
			text := s.text()
			return strings.Contains(text[strings.Index(text, shown):], "turn ")
		})
		s.types(ctrlC)
		s.ends(exitInterrupted)
		all := strings.Join(drawn(s.text()), "\n")
		if want := `^(.*\n)?begins\n(turn \d+\n)+(\^C)?fisub: fault: slow\.cu:[45]:\d+: kernel slow, block \(1,0,0\), .*\n`; !regexp.MustCompile(want).MatchString(all) {
			t.Errorf("the terminal shows at the end:\n%s\nwant %s", all, want)
		}
		b.fisub(exitNotPassed, "emu", "--timeout", "3s", "./slow")
		if out := b.stderr.String(); strings.Contains(out, "blocks/s") {
			t.Errorf("without a terminal: %s", out)
		}
	})
}

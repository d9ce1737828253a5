package source

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/trace"
)

// cpu is the processor time that this process has used; unlike the clock it does not see what else the machine does.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestInspectHostile: repetition does not take quadratic time.
func TestInspectHostile(t *testing.T) {
	for _, unit := range []string{
		"k<<<", "k<<<(", "map<", "map<void*", "f(", "{", "f() {", "f() { cudaMalloc(x); ", "#if A\n", "#if A\n{\n#else\n",
		"#include <a>\n", "/*", "R\"(", "\"a\"", "0x7f,", "#define A \\\n", "f(){ unordered_map<std::pair<",
	} {
		took := func(size int) time.Duration {
			src := strings.Repeat(unit, size/len(unit))
			sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", src)
			start := cpu(t)
			Inspect(sol, small(), nil)
			return cpu(t) - start
		}
		// 16 times where it is quadratic; what is too short to tell is not looked at.
		short, long := took(32<<10), took(128<<10)
		for try := 1; long > 8*short+50*time.Millisecond; try++ { // the machine may do something else meanwhile
			if try == 5 {
				t.Errorf("%q: 32 KiB take %v, 128 KiB %v, want at most 8 times as long", unit, short, long)
				break
			}
			short, long = max(short, took(32<<10)), min(long, took(128<<10))
		}
	}
}

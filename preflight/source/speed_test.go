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
		"template<", "template<(a)", "a<", "(", "[(", "f(", "f>(", "a::", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, f<",
		"x();\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel,x)\n", "#if A\n{", "#if A\n{\n#else\n", "namespace a{\n#if A\n",
		"namespace a::a{void f();",
		"#define A(x) TVM_FFI_DLL_EXPORT_TYPED_FUNC(x,x) A(x)A(x)A(x)\nA(a)A(a)\n", "PYBIND11_MODULE(a,m){m.def(\"kernel\",",
		"#define A",
	} {
		took := func(size int) time.Duration {
			src := strings.Repeat(unit, size/len(unit))
			sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", src)
			if strings.HasPrefix(unit, pybindMacro) {
				sol.Spec.Binding = "torch"
			}
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

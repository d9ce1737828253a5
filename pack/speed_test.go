//go:build !race

package pack

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"fisub/internal/trace"
)

// megabyte is a folder of 1 MB of sources, in n files.
func megabyte(t testing.TB, n int) string {
	files := map[string]string{}
	unit := "template <int N> __global__ void f(float* x, const int* y) { /* é */ x[0] = y[0] < 3 ? \"s\"[0] : 1'0; }\n"
	for i := range n {
		files[fmt.Sprintf("k%03d.cu", i)] = strings.Repeat(unit, (1<<20)/n/len(unit)) +
			"void run(int a) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);\n"
	}
	return write(t, files)
}

// cpu is the processor time that this process has used; unlike the clock it does not see what else the machine does.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestSpeed holds pack, with inspection, to its promise for 1 MB of sources; the best of five runs counts.
func TestSpeed(t *testing.T) {
	cfg := parse(t, strings.Replace(goldenConfig, "kernel.cu", "k000.cu", 1))
	dir := megabyte(t, 16)
	def := decode(t)
	best := time.Hour
	for range 5 {
		start := cpu(t)
		sol, _, err := Solution(cfg, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := Inspect(sol, def); len(got) != 1 {
			t.Fatalf("got %v, want one finding", got)
		}
		sol.Hash()
		sol.JSON(trace.Indent)
		best = min(best, cpu(t)-start)
	}
	t.Logf("1 MB in %v of processor time", best)
	if limit := 50 * time.Millisecond; best > limit {
		t.Errorf("got %v, want at most %v", best, limit)
	}
}

func BenchmarkPack(b *testing.B) {
	cfg := parse(b, strings.Replace(goldenConfig, "kernel.cu", "k000.cu", 1))
	dir := megabyte(b, 16)
	def := decode(b)
	b.ReportAllocs()
	for b.Loop() {
		sol, _, err := Solution(cfg, dir)
		if err != nil {
			b.Fatal(err)
		}
		Inspect(sol, def)
		sol.Hash()
		sol.JSON(trace.Indent)
	}
}

// TestInspectHostile: repetition does not take quadratic time.
func TestInspectHostile(t *testing.T) {
	for _, unit := range []string{
		"template<", "template<(a)", "a<", "(", "[(", "f(", "f>(", "a::", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, f<",
		"x();\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel,x)\n", "#if A\n{", "#if A\n{\n#else\n", "namespace a{\n#if A\n", "namespace a::a{void f();",
		"#define A(x) TVM_FFI_DLL_EXPORT_TYPED_FUNC(x,x) A(x)A(x)A(x)\nA(a)A(a)\n", "PYBIND11_MODULE(a,m){m.def(\"kernel\",", "#define A",
		"lambda", "@a\n", "import a,", "def kernel(", "def kernel(a,b=[1]):pass\n",
	} {
		src := strings.Repeat(unit, (256<<10)/len(unit))
		for _, entry := range []string{"kernel.cu", "kernel.py"} {
			sol := solution(trace.CUDA, entry+"::kernel", entry, src)
			if entry == "kernel.py" {
				sol.Spec.Language = trace.Triton
			} else if strings.HasPrefix(unit, pybindMacro) {
				sol.Spec.Binding = "torch"
			}
			start := cpu(t)
			Inspect(sol, small())
			if got, limit := cpu(t)-start, time.Second; got > limit {
				t.Errorf("%q in %s: got %v, want at most %v", unit, entry, got, limit)
			}
		}
	}
}

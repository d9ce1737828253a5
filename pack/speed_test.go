package pack

import (
	"fmt"
	"strings"
	"testing"

	"fisub/internal/trace"
	"fisub/project/preflight/source"
)

// megabyte creates a folder with 1 MB of sources, in n files.
func megabyte(t testing.TB, n int) string {
	files := map[string]string{}
	unit := "template <int N> __global__ void f(float* x, const int* y) { /* é */ x[0] = y[0] < 3 ? \"s\"[0] : 1'0; }\n"
	for i := range n {
		files[fmt.Sprintf("k%03d.cu", i)] = strings.Repeat(unit, (1<<20)/n/len(unit)) +
			"void run(int a) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);\n"
	}
	return write(t, files)
}

// BenchmarkPack packs and inspects 1 MB of sources. The limit is 50 ms.
func BenchmarkPack(b *testing.B) {
	cfg := parse(b, strings.Replace(goldenConfig, "kernel.cu", "k000.cu", 1))
	dir := megabyte(b, 16)
	var def trace.Definition
	b.ReportAllocs()
	for b.Loop() {
		sol, _, err := Solution(cfg, dir)
		if err != nil {
			b.Fatal(err)
		}
		source.Inspect(sol, &def, nil)
		sol.Hash()
		sol.JSON(trace.Indent)
	}
}

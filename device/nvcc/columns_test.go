package nvcc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestColumns maps a place in a preprocessed line to the source line, and back to text.
func TestColumns(t *testing.T) {
	for _, c := range []struct{ name, source, expanded, at, want string }{
		{"as it is", "  bar_sync(1, 96);", "  bar_sync(1, 96);", "bar_sync", "bar_sync(1, 96);"},
		{"behind __shared__", "  __shared__ float s[4]; s[t] = 0;", "  __attribute__((shared)) float s[4]; s[t] = 0;", "t] = 0",
			"t] = 0;"},
		{"a tab", "\t__shared__ float s[4]; \tbar_sync(1);", " __attribute__((shared)) float s[4]; bar_sync(1);", "bar_sync",
			"bar_sync(1);"},
		{"aligned with spaces", "float   a  =  p[0]; // c", "float a = p[0];", "p[0]", "p[0]; // c"},
		{"behind a comment", "f(/* x */ p[1]);", "f( p[1]);", "p[1]", "p[1]);"},
		{"behind macros of one's own", "x[N] = MAX(a, b) + y[N];", "x[64] = ((a) > (b) ? (a) : (b)) + y[64];", "y[64]", "y[N];"},
		{"in a macro", "x = LIMIT + y;", "x = (1 << 20) + y;", "20", "LIMIT + y;"},
		{"a kernel", "__global__ void __launch_bounds__(64) k(float* p) {",
			"__attribute__((global)) void __attribute__((launch_bounds(64))) k(float* p) {", "k(float", "k(float* p) {"},
		{"in one of two macros", "A B = 1;", "int x = 1;", "x", ""},
		{"of another line", "CALL(a,", "f((a), (b));", "b", ""},
	} {
		col := strings.Index(c.expanded, c.at) + 1
		if c.expanded != c.source {
			col = Columns{"k.cu": {7: aligned(c.expanded, c.source)}}.Of("k.cu", 7, col)
		}
		got := ""
		if col > 0 {
			got = c.source[col-1:]
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if got := (Columns)(nil).Of("k.cu", 1, 12); got != 12 {
		t.Errorf("without a table: got %d, want 12", got)
	}
}

// TestColumnsKept reads exactly the source lines from nvcc's kept files.
func TestColumnsKept(t *testing.T) {
	dir := t.TempDir()
	text := `# 0 "k.cu"
# 1 "/cuda/include/crt/host_defines.h" 1
int other;
# 1 "./h.cuh" 1
__attribute__((device)) inline float f() { return 1; }
# 2 "k.cu" 2

  int same = 1;
  __attribute__((shared)) float s[4];
`
	if err := os.WriteFile(filepath.Join(dir, "k.cpp1.ii"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := columns(dir, map[string][]string{"h.cuh": {"__device__ inline float f() { return 1; }"},
		"k.cu": {`#include "h.cuh"`, "", "  int same = 1;  ", "  __shared__ float s[4];", ""}})
	if len(got) != 2 || len(got["k.cu"]) != 1 || len(got["h.cuh"]) != 1 {
		t.Errorf("got %v", got)
	}
	if col := got.Of("k.cu", 4, strings.Index("  __attribute__((shared)) float s[4];", "s[4]")+1); col != 20 {
		t.Errorf("got column %d, want 20", col)
	}
}

// TestMessagesOfSource shows the line as written, with the marker below the column.
func TestMessagesOfSource(t *testing.T) {
	files := map[string][]string{"k.cu": {"", "  __shared__ float s[4];  s[t] = 0;", "int x = A B;"}}
	log := "k.cu(2): error: identifier \"t\" is undefined\n" +
		"    __attribute__((shared)) float s[4]; s[t] = 0;\n" +
		"                                          ^\n" +
		"\nk.cu(3): error: expected a \";\"\n" +
		"  int x = 1 2;\n" +
		"            ^\n" +
		"h.h(3): error: x\n  int x;\n      ^\n"
	want := "k.cu:2:29: error: identifier \"t\" is undefined\n" +
		"    __shared__ float s[4];  s[t] = 0;\n" +
		"                              ^\n" +
		"\nk.cu(3): error: expected a \";\"\n" +
		"  int x = A B;\n" +
		"\n" +
		"h.h:3:5: error: x\n  int x;\n      ^\n"
	if got := withColumns(log, files); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

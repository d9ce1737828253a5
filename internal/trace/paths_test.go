package trace

import (
	"fmt"
	"strings"
	"testing"
)

func TestUnwritable(t *testing.T) {
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("d/", 1919) + "ab" // 3,840 bytes
	for _, paths := range [][]string{
		nil,
		{"k.cu", "k.cuh", "k.cu.h", "a/k.cu", "a/b/k.cu", "a-/k.cu", "a.b"},
		{"./x", "a//b", "a/./c", ".x"},
		{"a/" + long, deep},
	} {
		if fault, _ := unwritable(paths); fault != "" {
			t.Errorf("%.60q: got %.60q", paths, fault)
		}
	}
	for _, test := range []struct {
		paths []string
		index int
		want  string
	}{
		{[]string{"kernel.cu", "kernel.cu/inner.cu"}, 1, "Source path 'kernel.cu' is both a file and a folder, of 'kernel.cu/inner.cu'"},
		{[]string{"a/b/c", "a/b.c", "a/b"}, 0, "Source path 'a/b' is both a file and a folder, of 'a/b/c'"},
		{[]string{"a/b/c/d", "x", "a-b", "a"}, 0, "Source path 'a' is both a file and a folder, of 'a/b/c/d'"},
		{[]string{"x", "./x"}, 1, "Source paths 'x' and './x' are the same file"},
		{[]string{"a//b", "c", "a/b"}, 2, "Source paths 'a//b' and 'a/b' are the same file"},
		{[]string{"k.cu", "./k.cu/x"}, 1, "Source path 'k.cu' is both a file and a folder, of './k.cu/x'"},
		{[]string{"x", "."}, 1, "Source path '.' is not a file"},
		{[]string{"a/"}, 0, "Source path 'a/' is not a file"},
		{[]string{"a\x00b"}, 0, `Source path "a\x00b" has a NUL`},
		{[]string{"x", "a/" + long + "n/b"}, 1, "Source path has a name that is too long: 256 bytes, at most 255 are possible"},
		{[]string{deep + "c"}, 0, "Source path is too long: 3841 bytes, at most 3840 are possible"},
	} {
		if fault, index := unwritable(test.paths); fault != test.want || index != test.index {
			t.Errorf("%.60q: got %d, %q; want %d, %q", test.paths, index, fault, test.index, test.want)
		}
	}
}

// Many long paths do not take long: with a look at all parents of each, this test would last longer than go test
// allows.
func TestUnwritableMany(t *testing.T) {
	var paths []string
	for i := range 16_000 {
		paths = append(paths, fmt.Sprintf("%s%05d", strings.Repeat("d/", 1900), i))
	}
	if fault, _ := unwritable(paths); fault != "" {
		t.Errorf("got %.60q", fault)
	}
}

func TestDecodeUnwritable(t *testing.T) {
	const solution = `{"name":"n","definition":"d","author":"a","spec":{"language":"cuda","target_hardware":["cuda"],
		"entry_point":"k.cu::k"},"sources":[{"path":"k.cu","content":"x"},
		{"path":"k.cu/a","content":"x"}]}`
	const want = "solution:3:11: Value error, Source path 'k.cu' is both a file and a folder, of 'k.cu/a'"
	if _, _, err := DecodeSolution([]byte(solution)); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

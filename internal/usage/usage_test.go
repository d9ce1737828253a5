package usage

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fisub/internal/safetensors"
	"fisub/internal/trace"
)

func TestExplain(t *testing.T) {
	short := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(short, []byte("1234"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, damaged := safetensors.Open(short)
	_, _, solution := trace.DecodeSolution([]byte(`{"name":`))
	_, _, workload := trace.DecodeWorkload([]byte(`{}`))
	for _, c := range []struct {
		name       string
		err        error
		text, hint string // the text ends with text, the hint begins with hint
	}{
		{"system call", fmt.Errorf("-C: %w", &fs.PathError{Op: "stat", Path: "x", Err: syscall.ENOENT}),
			"-C: x: no such file or directory", ""},
		{"no name", &fs.PathError{Op: "mkdir", Path: "", Err: syscall.ENOENT}, `"": no such file or directory`, ""},
		{"full disk", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "write x: no space left on device",
			"make room on that disk"},
		{"open files", &fs.PathError{Op: "open", Path: "x", Err: syscall.EMFILE}, "x: too many open files", "ulimit -n"},
		{"damaged file", damaged, "x.safetensors: 4 bytes cannot be a safetensors file", "the file is cut off"},
		{"solution", solution, "", "fix it at that place, or write it again"},
		{"workload", workload, "", "fix it at that place, or fetch"},
	} {
		text, hint := Explain(c.err)
		if !strings.HasSuffix(text, c.text) || c.hint == "" && hint != "" || !strings.HasPrefix(hint, c.hint) {
			t.Errorf("%s: got %q with the hint %q, want %q with %q", c.name, text, hint, c.text, c.hint)
		}
	}
}

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
			"free disk space"},
		{"open files", &fs.PathError{Op: "open", Path: "x", Err: syscall.EMFILE}, "x: too many open files", "raise the limit of open files"},
		{"damaged file", damaged, "x.safetensors: 4 bytes are too few for a safetensors file", "the file is truncated"},
		{"solution", solution, "", "fix that line, or write the file again"},
		{"workload", workload, "", "fix that line, or fetch"},
	} {
		text, hint := Explain(c.err)
		if !strings.HasSuffix(text, c.text) || c.hint == "" && hint != "" || !strings.HasPrefix(hint, c.hint) {
			t.Errorf("%s: got %q with the hint %q, want %q with %q", c.name, text, hint, c.text, c.hint)
		}
	}
}

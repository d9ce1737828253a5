package hint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOf(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "nowhere"))
	_, temp := os.Stat(os.TempDir()) // as os.MkdirTemp does
	plain := errors.New("plain")
	inner := Wrap(plain, "inner")
	for _, tc := range []struct {
		name string
		err  error
		want string // a prefix; "" for no hint
	}{
		{"none", plain, ""},
		{"nil", nil, ""},
		{"wrapped", fmt.Errorf("doing: %w", inner), "inner"},
		{"the outermost", Wrap(fmt.Errorf("doing: %w", inner), "outer"), "outer"},
		{"an empty one", Wrap(inner, ""), "inner"},
		{"joined", errors.Join(plain, inner), "inner"},
		{"full disk", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "free disk space"},
		{"full disk with a hint", Wrap(&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "own"), "own"},
		{"open files", &fs.PathError{Op: "open", Path: "x", Err: syscall.EMFILE}, "raise the limit of open files"},
		{"temporary folder", temp, "set TMPDIR"},
		{"read-only temporary folder", &fs.PathError{Op: "mkdir", Path: filepath.Join(os.TempDir(), "x"), Err: syscall.EROFS},
			"set TMPDIR"},
		{"read-only", &fs.PathError{Op: "open", Path: "project/x", Err: syscall.EROFS}, "write to another folder"},
		{"no permission to write", &fs.PathError{Op: "write", Path: "x", Err: syscall.EACCES}, "write to another folder"},
		{"no permission to make", &fs.PathError{Op: "mkdirat", Path: "x", Err: syscall.EACCES}, "write to another folder"},
		{"no permission to read", &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, ""},
	} {
		if got := Of(tc.err); !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	if got := Wrap(nil, "text"); got != nil {
		t.Errorf("nil: got %v", got)
	}
	if !errors.Is(inner, plain) || inner.Error() != "plain" {
		t.Errorf("got %v, want the error itself", inner)
	}
}

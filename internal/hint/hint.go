// Package hint attaches advice to errors: the line "hint: ..." below the text of an error. The package that creates an
// error attaches the hint, because it knows the remedy.
package hint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// An adviser is an error with its own hint; "" means no hint.
type adviser interface{ Advice() string }

type hinted struct {
	error
	text string
}

func (h *hinted) Unwrap() error  { return h.error }
func (h *hinted) Advice() string { return h.text }

// Wrap returns err with a hint. It returns err itself if that is nil or the hint is "".
func Wrap(err error, text string) error {
	if err == nil || text == "" {
		return err
	}
	return &hinted{err, text}
}

// Of returns the hint of err, or "". If several errors in the chain have a hint, the outermost one counts. Common
// operating-system errors have a hint without Wrap.
func Of(err error) string {
	if text := find(err); text != "" {
		return text
	}
	var file *fs.PathError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free disk space; FISUB_CACHE and TMPDIR can point to another disk; --resume continues an interrupted run"
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files with ulimit -n"
	case errors.As(err, &file) && file.Path == os.TempDir(), file != nil && denied(file) &&
		filepath.Dir(file.Path) == os.TempDir():
		return "set TMPDIR to another folder for temporary files"
	case file != nil && denied(file):
		return "write to another folder, or work in a copy of the project"
	}
	return ""
}

// denied reports whether the cause of err is a file or folder that cannot be written.
func denied(err *fs.PathError) bool {
	return errors.Is(err, syscall.EROFS) ||
		errors.Is(err, fs.ErrPermission) && (err.Op == "write" || strings.HasPrefix(err.Op, "mkdir"))
}

func find(err error) string {
	if a, ok := err.(adviser); ok { //nolint:errorlint // the chain is walked here
		if text := a.Advice(); text != "" {
			return text
		}
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		return find(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if text := find(one); text != "" {
				return text
			}
		}
	}
	return ""
}

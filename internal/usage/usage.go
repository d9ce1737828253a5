// Package usage marks errors in the user's input: the command line, the config and the files named there. fisub then
// exits with status 2. The package knows neither flags nor exit statuses.
package usage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"fisub/internal/hint"
	"fisub/internal/plain"
)

// An Error is an error in the user's input.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error with a hint, which may be "".
func Errorf(text, format string, args ...any) error {
	return &Error{hint.Wrap(fmt.Errorf(format, args...), text)}
}

// Invalid marks err as an error in the user's input, unless it is nil or a failure to write a file.
func Invalid(err error) error {
	if err == nil || unwritten(err) {
		return err
	}
	return &Error{err}
}

// Unknown returns an error for a word that is not in known. Its hint suggests the nearest known words.
func Unknown(what, word string, known []string) error {
	if near := plain.Nearest(word, known); len(near) > 0 {
		return Errorf("did you mean "+strings.Join(near, " or ")+"?", "unknown %s %q", what, word)
	}
	return Errorf("one of "+strings.Join(known, ", "), "unknown %s %q", what, word)
}

// Explain returns the text and hint of err for a user, with the excerpt of a fault in a file and without names of
// system calls.
func Explain(err error) (text, advice string) {
	text = err.Error()
	if file, ok := errors.AsType[*fs.PathError](err); ok && file.Op != "read" && file.Op != "write" {
		text = strings.Replace(text, file.Error(), cmp.Or(file.Path, `""`)+": "+file.Err.Error(), 1)
	}
	type excerpted interface {
		error
		Excerpted() string
	}
	if fault, ok := errors.AsType[excerpted](err); ok {
		text = fault.Excerpted()
	}
	return text, hint.Of(err)
}

// Flatten returns the individual errors in a joined error.
func Flatten(err error) []error {
	if u, ok := err.(*Error); ok { //nolint:errorlint // itself, not one that it wraps
		return Flatten(u.Err)
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, Flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// unwritten reports whether err is a failure that only writing a file or folder causes.
func unwritten(err error) bool {
	var file *fs.PathError
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) ||
		errors.As(err, &file) && strings.HasPrefix(file.Op, "mkdir") && errors.Is(err, fs.ErrPermission)
}

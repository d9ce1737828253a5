// Package usage marks errors that are about what the user gave: the command line, the config, files that are named
// there. fisub ends with exit status 2 for them. It knows neither flags nor exit statuses.
package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"fisub/internal/plain"
)

// An Error is about what the user gave. Hint, where there is one, stands in place of that of the error in it.
type Error struct {
	Err  error
	Hint string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error. The hint may be "".
func Errorf(hint, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Hint: hint}
}

// Invalid marks err, which is about the user's input and may be nil; not where it is that something cannot be written.
func Invalid(err error) error {
	if err == nil || unwritten(err) {
		return err
	}
	return &Error{Err: err}
}

// Unknown says that word is not one of the known ones, and which it may have been meant for.
func Unknown(what, word string, known []string) error {
	if near := plain.Nearest(word, known); len(near) > 0 {
		return Errorf("did you mean "+strings.Join(near, " or ")+"?", "unknown %s %q", what, word)
	}
	return Errorf("one of "+strings.Join(known, ", "), "unknown %s %q", what, word)
}

// Flatten gives the single errors of a joined one.
func Flatten(err error) []error {
	var u *Error
	if errors.As(err, &u) && error(u) == err && u.Hint == "" { //nolint:errorlint // itself, not one that it wraps
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

// unwritten tells whether err is that a file or folder cannot be written, by what only writing fails with.
func unwritten(err error) bool {
	var file *fs.PathError
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) ||
		errors.As(err, &file) && strings.HasPrefix(file.Op, "mkdir") && errors.Is(err, fs.ErrPermission)
}

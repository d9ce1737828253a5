package plain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// A KindError is the cause of an error of Open and OpenFile: the path is a FIFO, device or socket, which could block
// forever or never end.
type KindError struct{ Kind string } // "a FIFO"

func (e *KindError) Error() string { return "is " + e.Kind + ", not a regular file" }

// Advice returns the hint of the error.
func (e *KindError) Advice() string { return "replace it with a regular file" }

var descriptor = NewForm(`^/dev/(stdin|fd/[0-9]+)$|^/proc/self/fd/[0-9]+$`)

// Open opens a file for reading. See OpenFile.
func Open(path string) (*os.File, error) { return OpenFile(path, os.O_RDONLY, 0) }

// OpenFile is like os.OpenFile but neither waits for a FIFO nor opens a device: its error wraps a *KindError if path is
// a FIFO, device or socket, or a link to one. A path of an open descriptor, such as
// /dev/stdin or the /dev/fd/63 of a shell's <(command), may be of any kind.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	if descriptor.MatchString(path) {
		return os.OpenFile(path, flag, perm)
	}
	if st, err := os.Stat(path); err == nil { // opening a device may have effects
		if err := checkKind(path, st.Mode()); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK|syscall.O_NOCTTY, perm)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = checkKind(path, st.Mode())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkKind returns an error with a *KindError if mode is of neither a regular file nor a folder.
func checkKind(path string, mode fs.FileMode) error {
	kind := ""
	switch {
	case mode&fs.ModeNamedPipe != 0:
		kind = "a FIFO"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	default:
		return nil
	}
	return &fs.PathError{Op: "open", Path: path, Err: &KindError{kind}}
}

// ReadFile is like os.ReadFile but opens the file like Open, and returns an error for more than most bytes.
func ReadFile(path string, most int) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(data) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than the limit of %d bytes", most)}
	}
	return data, err
}

// WriteFile is like os.WriteFile but opens the file like OpenFile.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	f, err := OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

//go:build !linux

package memfile

import "os"

// New makes a file without a name of size bytes.
func New(name string, size int64) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Freeze does nothing on this system.
func Freeze(*os.File) error { return nil }

// Settle does nothing here.
func Settle(*os.File) error { return nil }

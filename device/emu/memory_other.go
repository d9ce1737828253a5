//go:build !linux

package emu

import "os"

// anonymousFile returns an empty file that no path names.
func anonymousFile(name string) (*os.File, error) {
	f, err := os.CreateTemp("", name)
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

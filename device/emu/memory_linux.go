package emu

import (
	"os"

	"golang.org/x/sys/unix"
)

// anonymousFile returns an empty file in memory that no path names.
func anonymousFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Package memfile makes files in memory that have no name: other processes reach them only through a descriptor that
// they are given.
package memfile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// New makes a file of size bytes that nobody can make shorter, so that whoever maps it can read all of it. Processes
// that have it can write to it, and make it longer with Truncate.
func New(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = f.Truncate(size); err == nil {
		err = seal(f, unix.F_SEAL_SHRINK)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Freeze ends all writing to f but through mappings that there are now, and all changes of its length.
func Freeze(f *os.File) error {
	err := seal(f, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.1
		err = seal(f, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if errors.Is(err, unix.EBUSY) { // it is mapped for writing
		err = seal(f, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	return err
}

// Settle keeps the processes that have f from sealing it, against writing or more length.
func Settle(f *os.File) error { return seal(f, unix.F_SEAL_SEAL) }

func seal(f *os.File, seals int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("F_ADD_SEALS", err)
}

// Package memfile creates nameless files in memory, which other processes reach only through a descriptor passed to
// them.
package memfile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"fisub/internal/retry"
)

// New creates a file of size bytes that cannot be shortened, so that a mapping of it stays readable. A process that has
// the file can write to it, and extend it with Truncate.
func New(name string, size int64) (*os.File, error) {
	var fd int
	err := retry.Short(func() (err error) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
		if errors.Is(err, unix.EINVAL) { // before Linux 6.3
			fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		}
		return err
	})
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

// Freeze forbids changes of f's length, and writing except through existing mappings.
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

// Settle forbids further seals, so that no process that has f can stop others from writing to it or extending it.
func Settle(f *os.File) error { return seal(f, unix.F_SEAL_SEAL) }

func seal(f *os.File, seals int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("F_ADD_SEALS", err)
}

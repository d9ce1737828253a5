// Package retry repeats system calls that fail because a limit of the user or the machine is reached for the moment.
package retry

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

// short lists the errors of a lack of descriptors, processes or memory, which other processes may soon release.
var short = []error{syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.ETOOMANYREFS}

// Short calls f until it succeeds or fails for another reason than a lack of descriptors, processes or memory. It
// makes five calls within 0.8 seconds and returns the last one's error.
func Short(f func() error) error {
	err := f()
	for pause := 50 * time.Millisecond; pause <= 400*time.Millisecond; pause *= 2 {
		if !slices.ContainsFunc(short, func(target error) bool { return errors.Is(err, target) }) {
			break
		}
		time.Sleep(pause)
		err = f()
	}
	return err
}

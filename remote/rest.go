package remote

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// A Rest reads from a pipe what a program says, to its end, however slow who takes it is. When the program has ended,
// each further piece may take Patience: a process that has outlived it may hold the pipe open, and is not waited for.
// Read then fails with os.ErrDeadlineExceeded.
type Rest struct {
	Pipe     *os.File
	Patience time.Duration
	ended    atomic.Bool
}

// End says that the program has ended.
func (r *Rest) End() {
	r.ended.Store(true)
	_ = r.Pipe.SetReadDeadline(time.Now().Add(r.Patience))
}

func (r *Rest) Read(p []byte) (int, error) {
	ended := r.ended.Load()
	if ended {
		_ = r.Pipe.SetReadDeadline(time.Now().Add(r.Patience))
	}
	n, err := r.Pipe.Read(p)
	if !ended && errors.Is(err, os.ErrDeadlineExceeded) { // it has ended since
		return r.Read(p)
	}
	return n, err
}

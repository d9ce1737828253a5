package remote

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// A Rest reads the output of a program from a pipe to the end, even if the caller is slow. After End each Read waits at
// most Patience and then fails with os.ErrDeadlineExceeded, because a process that outlives the program may keep the
// pipe open.
type Rest struct {
	Pipe     *os.File
	Patience time.Duration
	ended    atomic.Bool
}

// End marks the program as ended.
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
	if !ended && errors.Is(err, os.ErrDeadlineExceeded) { // End was called during this Read
		return r.Read(p)
	}
	return n, err
}

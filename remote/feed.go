package remote

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Slots returns n places (none if n < 1) with arbitrary names: the provider chooses the host.
func Slots(name string, n int) (places []Place) {
	for i := range n {
		places = append(places, Place{Host: fmt.Sprintf("%s%d", name, i+1), GPU: -1})
	}
	return places
}

// A Progress reports bytes sent to the progress function of a Submit. It is safe for concurrent use.
type Progress struct {
	Tell func(sent, total int64) // may be nil

	mu          sync.Mutex
	sent, total int64
}

// Begin sets the number of bytes to send.
func (p *Progress) Begin(total int64) {
	p.total = total
	p.Sent(0)
}

// Sent adds n bytes; if n is negative, they will be sent again.
func (p *Progress) Sent(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = min(p.sent+n, p.total)
	if p.Tell != nil {
		p.Tell(p.sent, p.total)
	}
}

// Write counts the bytes and discards them.
func (p *Progress) Write(b []byte) (int, error) {
	p.Sent(int64(len(b)))
	return len(b), nil
}

// After End the Progress reports nothing.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Tell = nil
}

// A ShortError replaces the text of Err, which may be long or contain a secret.
type ShortError struct {
	Text string
	Err  error
}

func (w *ShortError) Error() string { return w.Text }
func (w *ShortError) Unwrap() error { return w.Err }

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

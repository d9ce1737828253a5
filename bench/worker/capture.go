package worker

import (
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLog is the most that is kept of what a solution prints for one workload (spec section 1.4).
const maxLog = 5 << 20

const logTruncated = "\n\n[log truncated]\n"

// A capture collects what a process prints. Its take returns everything that was written before the call, also what is
// still in the pipe: a reply of the worker and the output before it come by different ways.
type capture struct {
	r    *os.File
	conn syscall.RawConn
	done chan struct{} // closed when the reading goroutine has ended

	mu        sync.Mutex
	buf       []byte
	truncated bool
}

// newCapture returns a capture and the file to print to, which the caller closes.
func newCapture() (*capture, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	conn, err := r.SyscallConn()
	if err != nil {
		r.Close()
		w.Close()
		return nil, nil, err
	}
	c := &capture{r: r, conn: conn, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = conn.Read(func(fd uintptr) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.drain(int(fd))
		})
	}()
	return c, w, nil
}

// drain reads what the pipe holds; it returns true at the pipe's end.
func (c *capture) drain(fd int) (end bool) {
	var chunk [1 << 16]byte
	for {
		n, err := unix.Read(fd, chunk[:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil || n == 0:
			return true
		}
		room := maxLog - len(c.buf)
		if n > room {
			n, c.truncated = room, true
		}
		c.buf = append(c.buf, chunk[:n]...)
	}
}

func (c *capture) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Control(func(fd uintptr) { c.drain(int(fd)) })
	s := strings.ToValidUTF8(string(c.buf), "\uFFFD")
	if c.truncated {
		s += logTruncated
	}
	c.buf, c.truncated = nil, false
	return s
}

// close ends the capture; what the pipe still holds can be taken afterwards.
func (c *capture) close() {
	c.mu.Lock()
	_ = c.conn.Control(func(fd uintptr) { c.drain(int(fd)) })
	c.mu.Unlock()
	_ = c.r.Close()
	<-c.done
}

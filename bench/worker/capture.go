package worker

import (
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLog is the maximum kept output of a solution per workload in bytes (spec section 1.4).
const maxLog = 5 << 20

const logTruncated = "\n\n[log truncated]\n"

// A capture collects the output of a process. take returns everything written before the call, including data still
// in the pipe: a reply and the output before it take different paths.
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

// drain reads the contents of the pipe. It returns true at the end of the pipe.
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

// close ends the capture. take still returns the output that was left in the pipe.
func (c *capture) close() {
	c.mu.Lock()
	_ = c.conn.Control(func(fd uintptr) { c.drain(int(fd)) })
	c.mu.Unlock()
	_ = c.r.Close()
	<-c.done
}

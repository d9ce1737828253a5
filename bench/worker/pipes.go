package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"fisub/internal/retry"
)

// socket returns the two ends of the request socket. The parent writes; the worker gets the file.
func socket() (parent *net.UnixConn, worker *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own := os.NewFile(uintptr(ends[0]), "requests")
	defer own.Close()
	worker = os.NewFile(uintptr(ends[1]), "requests")
	if parent, err = connection(own); err != nil {
		worker.Close()
	}
	return parent, worker, err
}

// connection returns a connection on a duplicate of f.
func connection(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("%s is not a Unix socket", f.Name())
	}
	return u, nil
}

// send writes line. The descriptors of files go with its first byte.
func send(c *net.UnixConn, line []byte, files []*os.File) error {
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	return retry.Short(func() error {
		for len(line) > 0 {
			n, _, err := c.WriteMsgUnix(line, rights, nil)
			if err != nil {
				return err
			}
			line, rights = line[n:], nil
		}
		return nil
	})
}

// Requests reads a worker's requests: the text, and the files sent with it.
type Requests struct {
	conn  *net.UnixConn
	files []*os.File
}

// maxFiles is the maximum number of files in one request.
const maxFiles = 16

func (r *Requests) Read(p []byte) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, size, _, _, err := r.conn.ReadMsgUnix(p, rights)
	n = max(n, 0) // -1 after an error
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	if err != nil || size == 0 {
		return n, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	for _, m := range messages {
		fds, ferr := unix.ParseUnixRights(&m)
		if ferr != nil {
			return n, ferr
		}
		for _, fd := range fds {
			r.files = append(r.files, os.NewFile(uintptr(fd), "tensors"))
		}
	}
	return n, err
}

// take returns the files received since the last call.
func (r *Requests) take() []*os.File {
	files := r.files
	r.files = nil
	return files
}

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

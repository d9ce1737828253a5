package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

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

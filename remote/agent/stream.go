package agent

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"fisub/remote"
)

// A stream takes what the program prints through a pipe, and alone writes the file of it: no process of the job can
// open that for writing by what it has inherited. Where the file cannot be written, the program finds the pipe closed.
type stream struct {
	in     *os.File // the program's end, until take
	out    *os.File // this process's end
	file   *os.File
	signed remote.Sealer
	over   atomic.Bool // no process that is meant to can write to the pipe any more
	err    chan error  // of the file, when all is in it
}

func openStream(dir string, seal *remote.Seal) (*stream, error) {
	file, err := os.OpenFile(filepath.Join(dir, EventsName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &stream{in: in, out: out, file: file, signed: remote.Sealer{W: file, Seal: seal}, err: make(chan error, 1)}, nil
}

// take begins to take what the program prints, once that has been started.
func (s *stream) take() {
	s.in.Close()
	go func() {
		for buf := make([]byte, 64<<10); ; {
			if s.over.Load() {
				_ = s.out.SetReadDeadline(time.Now().Add(grace))
			}
			n, end := s.out.Read(buf)
			_, err := s.signed.Write(buf[:n])
			if err != nil || end != nil {
				s.out.Close()
				s.err <- err
				return
			}
		}
	}()
}

// end returns when all is in the file that the program has printed, which has ended with all its processes: one that
// hangs in a driver is not waited for.
func (s *stream) end() error {
	s.over.Store(true)
	_ = s.out.SetReadDeadline(time.Now().Add(grace))
	return errors.Join(<-s.err, s.file.Close())
}

// close ends a stream that was not taken to its end.
func (s *stream) close() {
	s.in.Close()
	s.out.Close()
	s.file.Close()
}

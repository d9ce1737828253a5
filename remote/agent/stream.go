package agent

import (
	"errors"
	"os"
	"path/filepath"

	"fisub/remote"
)

// A stream takes what the program prints through a pipe, and alone writes the file of it: no process of the job can
// open that for writing by what it has inherited. Where the file cannot be written, the program finds the pipe closed.
type stream struct {
	in     *os.File    // the program's end, until take
	out    remote.Rest // this process's end
	file   *os.File
	signed remote.Sealer
	err    chan error // of the file, when all is in it
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
	return &stream{in: in, out: remote.Rest{Pipe: out, Patience: grace}, file: file,
		signed: remote.Sealer{W: file, Seal: seal}, err: make(chan error, 1)}, nil
}

// take begins to take what the program prints, once that has been started.
func (s *stream) take() {
	s.in.Close()
	go func() {
		for buf := make([]byte, 64<<10); ; {
			n, end := s.out.Read(buf)
			_, err := s.signed.Write(buf[:n])
			if err != nil || end != nil {
				s.out.Pipe.Close()
				s.err <- err
				return
			}
		}
	}()
}

// end returns when all is in the file that the program has printed, which has ended with all its processes: one that
// hangs in a driver is not waited for.
func (s *stream) end() error {
	s.out.End()
	return errors.Join(<-s.err, s.file.Close())
}

// close ends a stream that was not taken to its end.
func (s *stream) close() {
	s.in.Close()
	s.out.Pipe.Close()
	s.file.Close()
}

package agent

import (
	"errors"
	"os"
	"path/filepath"

	"fisub/remote"
)

// A stream copies the program's output from a pipe to the events file. The program does not inherit the file, so its
// processes cannot write to it. If writing fails, the pipe is closed.
type stream struct {
	in     *os.File    // write end for the program, until take
	out    remote.Rest // read end
	file   *os.File
	signed remote.Sealer
	err    chan error // gets the error of writing the file, when all is written
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

// take starts reading, after the start of the program.
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

// end waits until all output is in the file, after the end of the program. It does not wait for a process stuck in a
// driver.
func (s *stream) end() error {
	s.out.End()
	return errors.Join(<-s.err, s.file.Close())
}

// close releases a stream that end was not called for.
func (s *stream) close() {
	s.in.Close()
	s.out.Pipe.Close()
	s.file.Close()
}

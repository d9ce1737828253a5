package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"fisub/internal/plain"
)

// Local is this machine.
type Local struct {
	Env []string // additional environment of commands: "NAME=value"
}

// Run runs a command on this machine. Ctrl-C does not reach it.
func (l Local) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	if stdout == nil {
		stdout = io.Discard
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	out, words := &tap{w: stdout, stop: stop}, &plain.Buffer{Limit: maxStderr}
	cmd := exec.CommandContext(running, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), l.Env...)
	cmd.Stdin, cmd.Stderr = stdin, words
	cmd.WaitDelay = time.Second
	err := run(running, cmd, out)
	var failed *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", argv[0], context.Cause(ctx))
	case out.err != nil:
		return out.err
	case errors.As(err, &failed):
		return &ExitError{argv[0], failed.ExitCode(), words.String()}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &ExitError{argv[0], NotFound, ""}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC):
		return &ExitError{argv[0], NotRunnable, err.Error()}
	}
	return fmt.Errorf("%s: %w", argv[0], err)
}

// Read copies part of a file.
func (Local) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error) {
	f, err := plain.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, io.LimitReader(&contextReader{ctx, f}, limit))
}

// Sizes lists a folder.
func (Local) Sizes(_ context.Context, dir string) (map[string]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			sizes[e.Name()] = st.Size()
		}
	}
	return sizes, nil
}

// Close does nothing: there is no connection.
func (Local) Close() error { return nil }

// A contextReader ends with the context's error.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

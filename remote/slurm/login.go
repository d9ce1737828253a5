package slurm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fisub/remote"
)

// A login is where Slurm's commands run and where the work folder is written: this machine, or a host behind ssh. Its methods
// may be called from several goroutines at a time. A file that is not there is fs.ErrNotExist. Errors other than that and
// *commandError mean that the host cannot be reached.
type login interface {
	// Run runs a command to its end and gives its standard output, of which it keeps maxOutput bytes. A command that ends with
	// another status than 0 is a *commandError.
	Run(ctx context.Context, argv []string, stdin string) (string, error)

	// Put writes a file by a temporary name beside it, which begins with ".", and renames it when all of r is there.
	Put(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error

	// Read copies the file from byte offset from on to w, as far as it reaches now and at most limit bytes. It opens the file anew
	// each time, since a network file system looks for what other hosts wrote when a file is opened.
	Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error)

	// Sizes gives the files and folders in dir by name, and their sizes in bytes.
	Sizes(ctx context.Context, dir string) (map[string]int64, error)

	Close() error
}

// maxOutput bounds what is kept of each of a command's two outputs.
const maxOutput = 4 << 20

// notFound is the exit status of a shell for a command that does not exist.
const notFound = 127

// A commandError is a command that ran and ended with another status than 0.
type commandError struct {
	name   string // of the program
	status int
	stderr string
}

func (e *commandError) Error() string {
	switch words := complaint(e.stderr); {
	case e.status == notFound && words == "":
		return e.name + ": command not found"
	case words != "":
		return e.name + ": " + words
	}
	return fmt.Sprintf("%s: exit status %d", e.name, e.status)
}

// program gives the name of the program that argv runs: Slurm's, where another one runs it.
func program(argv []string) string {
	for _, arg := range argv {
		if slices.Contains(commands, arg) {
			return arg
		}
	}
	return argv[0]
}

// here is the login that is this machine.
type here struct {
	env []string // beside this process's own
}

func (l here) Run(ctx context.Context, argv []string, stdin string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), l.env...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out, words capped
	cmd.Stdout, cmd.Stderr = &out, &words
	err := remote.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var failed *exec.ExitError
	switch {
	case err == nil:
		return string(out.kept), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", program(argv), context.Cause(ctx))
	case errors.As(err, &failed):
		return string(out.kept), &commandError{name: program(argv), status: failed.ExitCode(), stderr: string(words.kept)}
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &commandError{name: program(argv), status: notFound}
	}
	return "", fmt.Errorf("%s: %w", program(argv), err)
}

func (here) Put(ctx context.Context, name string, r io.Reader, mode fs.FileMode) (err error) {
	temp := filepath.Join(filepath.Dir(name), "."+rand.Text())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	_, err = io.Copy(f, &contextReader{ctx, r})
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, name)
}

func (here) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, io.LimitReader(&contextReader{ctx, f}, limit))
}

func (here) Sizes(_ context.Context, dir string) (map[string]int64, error) {
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

func (here) Close() error { return nil }

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

// A capped buffer keeps maxOutput bytes and drops the rest.
type capped struct{ kept []byte }

func (c *capped) Write(p []byte) (int, error) {
	c.kept = append(c.kept, p[:min(len(p), maxOutput-len(c.kept))]...)
	return len(p), nil
}

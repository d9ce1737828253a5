// Package host is where a provider runs commands and keeps files: this machine, or a host behind OpenSSH. It is not for
// knowing what the commands do, nor what the files are.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/plain"
	"fisub/remote"
)

// A Host runs commands and keeps files. Its methods may be called from several goroutines at a time, and end soon after
// ctx. A command that failed is an *ExitError, a file that is not there fs.ErrNotExist. Of a Host behind a network
// other errors are a *remote.Denied, whose Provider is the caller's to fill in, where it cannot be reached or does not
// let the user in, and a *LostError where the connection broke.
type Host interface {
	// Run runs a command to its end, without a shell's reading of its words. stdin and stdout may be nil. An error of
	// stdout ends it, and is Run's.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error

	// Read copies the file from byte offset from on to w, as far as it reaches now and at most limit bytes. It opens the
	// file anew each time, since a network file system looks for what other hosts wrote when a file is opened.
	Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error)

	// Sizes gives the files and folders in dir by name, and their sizes in bytes.
	Sizes(ctx context.Context, dir string) (map[string]int64, error)

	Close() error
}

// Shell is the command that runs a script, whose $1, $2, ... are args. It drops an interrupt from the keyboard that
// came before Local had put the shell out of reach: Local blocks it, and dash lets it through after its first command.
func Shell(script string, args ...string) []string {
	return append([]string{"sh", "-c", "trap '' INT; trap - INT; " + script, "sh"}, args...)
}

// A Runner is the Run of a Host that has no other way to its files.
type Runner func(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error

// absent is the status of scripts that do not find the file.
const absent = 44

func (run Runner) file(ctx context.Context, script string, args []string, stdout io.Writer) error {
	err := run(ctx, Shell(script, args...), nil, stdout)
	if failed, ok := errors.AsType[*ExitError](err); ok && failed.Status == absent {
		return fmt.Errorf("%s: %w", args[0], fs.ErrNotExist)
	} else if ok && failed.Stderr != "" {
		failed.Name = "" // its words name what failed
	}
	return err
}

// read gives at most $3 bytes of file $1 from byte $2 on, counted from 1.
var read = fmt.Sprintf(`[ -e "$1" ] || exit %d; exec <"$1" && tail -c "+$2" | head -c "$3"`, absent)

// Read is that of a Host.
func (run Runner) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error) {
	to := &counter{w: w}
	err := run.file(ctx, read, []string{name, strconv.FormatInt(from+1, 10), strconv.FormatInt(limit, 10)}, to)
	return to.n, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// sizes gives the size and name of each entry of folder $1, a line each.
var sizes = fmt.Sprintf(`[ -d "$1" ] || exit %d
cd -- "$1" && find . -maxdepth 1 ! -name . -exec stat -c '%%s %%n' {} +`, absent)

// Sizes is that of a Host.
func (run Runner) Sizes(ctx context.Context, dir string) (map[string]int64, error) {
	out := &plain.Buffer{Limit: 16 << 20}
	err := run.file(ctx, sizes, []string{dir}, out)
	all := map[string]int64{}
	for line := range strings.Lines(out.String()) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ./")
		if n, err := strconv.ParseInt(size, 10, 64); err == nil {
			all[name] = n
		}
	}
	return all, err
}

// Statuses that a shell gives a command that it cannot run.
const (
	NotRunnable = 126
	NotFound    = 127
)

// An ExitError is a command that ran and ended with another status than 0.
type ExitError struct {
	Name   string // of the program; "" for a script, whose words name what failed
	Status int
	Stderr string // its first 64 KiB
}

func (e *ExitError) Error() string {
	var words []string
	for line := range strings.Lines(e.Stderr) {
		line = strings.TrimSpace(line)
		if e.Name != "" {
			line = strings.TrimPrefix(strings.TrimPrefix(line, e.Name+": "), "error: ")
		}
		if line = plain.Brief(line, 300); line != "" && !slices.Contains(words, line) && len(words) < 5 {
			words = append(words, line)
		}
	}
	text := strings.Join(words, "; ")
	switch {
	case text == "" && e.Status == NotFound:
		text = "command not found"
	case text == "":
		text = fmt.Sprintf("exit status %d", e.Status)
	}
	return strings.TrimPrefix(e.Name+": "+text, ": ")
}

// maxStderr bounds what is kept of a command's standard error.
const maxStderr = 64 << 10

// A LostError says that the connection failed, and not what was done over it.
type LostError struct{ Text string }

func (e *LostError) Error() string { return "connection lost: " + e.Text }

// A tap passes writes on and keeps the first error: whose fault a failure was.
type tap struct {
	w    io.Writer
	stop func() // called when w fails
	err  error
}

func (t *tap) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if t.err = err; err != nil {
		t.stop()
	}
	return n, err
}

// run runs a command until it has ended and out has all that it said, however long out takes. A process that has
// outlived the command and says nothing for the command's WaitDelay is not waited for.
func run(ctx context.Context, cmd *exec.Cmd, out io.Writer) error {
	r, w, err := os.Pipe()
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer r.Close()
	cmd.Stdout = w
	err = remote.Start(cmd)
	w.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { r.Close() })()
	said := &remote.Rest{Pipe: r, Patience: cmd.WaitDelay}
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, said)
		r.Close() // whoever still writes is told so
		copied <- err
	}()
	err = cmd.Wait()
	said.End()
	late := <-copied
	if errors.Is(late, os.ErrDeadlineExceeded) {
		late = exec.ErrWaitDelay
	}
	return cmp.Or(err, late)
}

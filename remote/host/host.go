// Package host runs commands and accesses files on this machine, on a host behind OpenSSH, or in a Kubernetes pod.
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
	"syscall"
	"time"

	"fisub/internal/plain"
	"fisub/remote"
)

// A Host runs commands. Its methods may be called concurrently, and return soon after ctx ends. A
// failed command gives an *ExitError. Behind a network, an unreachable host or a
// rejected login gives a *remote.Denied, whose Provider the caller must set, and a broken connection a *LostError.
type Host interface {
	// Run runs a command, without a shell, and waits for it. stdin and stdout may be nil. An error of stdout ends the
	// command and is returned.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error

	Close() error
}

// Shell returns the command that runs a script with the positional parameters args. Its traps discard a Ctrl-C that
// came before Local had put the shell into its own process group: Local blocks SIGINT, but dash unblocks it after its
// first command.
func Shell(script string, args ...string) []string {
	return append([]string{"sh", "-c", "trap '' INT; trap - INT; " + script, "sh"}, args...)
}

// absent is the exit status of scripts that do not find the file.
const absent = 44

func file(ctx context.Context, h Host, script string, args []string, stdout io.Writer) error {
	err := h.Run(ctx, Shell(script, args...), nil, stdout)
	if failed, ok := errors.AsType[*ExitError](err); ok && failed.Status == absent {
		return fmt.Errorf("%s: %w", args[0], fs.ErrNotExist)
	} else if ok && failed.Stderr != "" {
		failed.Name = "" // stderr already names the command that failed
	}
	return err
}

// read prints at most $3 bytes of file $1 from byte $2 (the first is 1).
var read = fmt.Sprintf(`[ -e "$1" ] || exit %d; exec <"$1" && tail -c "+$2" | head -c "$3"`, absent)

// Read copies at most limit bytes of the current content of a host's file to w, from byte offset from. A missing file
// gives fs.ErrNotExist. It opens the file each time, because only that makes a network file system look for changes by
// other hosts.
func Read(ctx context.Context, h Host, name string, from, limit int64, w io.Writer) (int64, error) {
	type reader interface { // Local needs no command
		Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error)
	}
	if r, ok := h.(reader); ok {
		return r.Read(ctx, name, from, limit, w)
	}
	to := &counter{w: w}
	err := file(ctx, h, read, []string{name, strconv.FormatInt(from+1, 10), strconv.FormatInt(limit, 10)}, to)
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

// sizes prints the size and name of each entry of folder $1, one per line.
var sizes = fmt.Sprintf(`[ -d "$1" ] || exit %d
cd -- "$1" && find . -maxdepth 1 ! -name . -exec stat -c '%%s %%n' {} +`, absent)

// Sizes returns the sizes in bytes of files and folders in a folder of a host, by name. A missing folder gives
// fs.ErrNotExist.
func Sizes(ctx context.Context, h Host, dir string) (map[string]int64, error) {
	out := &plain.Buffer{Limit: 16 << 20}
	err := file(ctx, h, sizes, []string{dir}, out)
	all := map[string]int64{}
	for line := range strings.Lines(out.String()) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ./")
		if n, err := strconv.ParseInt(size, 10, 64); err == nil {
			all[name] = n
		}
	}
	return all, err
}

// Exit statuses of a shell for a command that it cannot run.
const (
	NotRunnable = 126
	NotFound    = 127
)

// An ExitError is the error of a command with a non-zero exit status.
type ExitError struct {
	Name   string // name of the program; "" for a script, whose stderr names the command that failed
	Status int
	Stderr string // the first 64 KiB of standard error
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

// maxStderr limits the bytes kept of a command's standard error.
const maxStderr = 64 << 10

// A LostError is a failure of the connection, not of the command.
type LostError struct{ Text, Hint string }

func (e *LostError) Error() string { return "connection lost: " + e.Text }

// A tap passes writes on to w and keeps w's error, to tell it from an error of the command.
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

// run runs a command and returns when all of its output has been written to out, however slow out is. It does not wait
// for a process that outlives the command and is silent for WaitDelay.
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
		r.Close() // a process that still writes gets SIGPIPE
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

// Local is this machine.
type Local struct {
	Env []string // additional environment of commands: "NAME=value"
}

// Run runs a command on this machine. Ctrl-C does not reach it.
func (l Local) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	out, words := &tap{w: cmp.Or(stdout, io.Discard), stop: stop}, &plain.Buffer{Limit: maxStderr}
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
	defer context.AfterFunc(ctx, func() { f.Close() })()
	n, err := io.Copy(w, io.LimitReader(f, limit))
	return n, cmp.Or(ctx.Err(), err)
}

// Close does nothing: there is no connection.
func (Local) Close() error { return nil }

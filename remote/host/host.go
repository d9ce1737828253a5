// Package host is where a provider runs commands and keeps files: this machine, or a host behind OpenSSH. It is not for
// knowing what the commands do, nor what the files are.
package host

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"fisub/internal/plain"
)

// A Host runs commands and keeps files. Its methods may be called from several goroutines at a time, and end soon after
// ctx. A command that failed is an *ExitError, a file that is not there fs.ErrNotExist. Of a Host behind a network
// other errors are a *remote.Denied, whose Provider is the caller's to fill in, where it cannot be reached or does not
// let the user in, and a *LostError where the connection broke.
type Host interface {
	// Run runs a command to its end, without a shell's reading of its words. stdin and stdout may be nil. An error of
	// stdout ends it, and is Run's.
	Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error

	// Put writes a file by a temporary name beside it, which begins with ".", and renames it when all of r is there. Where
	// r is an io.Seeker and the connection is lost, the next Put of the same name goes on where this one was. An error of
	// r is Put's.
	Put(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error

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

// A tap passes reads and writes on and keeps the first error that is not the end of a file: whose fault a failure was.
type tap struct {
	r    io.Reader
	w    io.Writer
	stop func() // called when w fails; may be nil
	err  error
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

func (t *tap) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if t.err = err; err != nil && t.stop != nil {
		t.stop()
	}
	return n, err
}

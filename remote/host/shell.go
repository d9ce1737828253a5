package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fisub/internal/plain"
)

// shellFiles are the files of a host that has a shell and the core utilities, but no protocol for files: what of a Host
// is not Run.
type shellFiles struct {
	run func(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error

	mu    sync.Mutex
	parts map[string]string // of a file that was cut off while it was sent: its temporary name
}

// noFile is the status of scripts that do not find their file.
const noFile = 44

// ask runs a script for an answer; name is the file that it is about.
func (s *shellFiles) ask(ctx context.Context, name, script string, in io.Reader, out io.Writer, args ...string) error {
	err := s.run(ctx, Shell(script, append([]string{name}, args...)...), in, out)
	var failed *ExitError
	if errors.As(err, &failed) {
		switch failed.Name = ""; {
		case failed.Status == noFile:
			err = fs.ErrNotExist
		case strings.Contains(failed.Stderr, "No space left on device"), strings.Contains(failed.Stderr, "quota exceeded"):
			return err
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// put writes to $1, behind the first $3 bytes of $2, and says how long the file is then. What goes on is another file:
// a command whose connection is lost may still write to the old one.
const put = `umask 077; [ -z "$2" ] || head -c "$3" -- "$2" >"$1" || exit; rm -f -- "$2"; cat >>"$1" && wc -c <"$1"`

// Put writes a file. A command whose connection is lost takes that for the end of the file, so the host's word for its
// size stands before the rename.
func (s *shellFiles) Put(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error {
	seeker, resumable := r.(io.Seeker)
	s.mu.Lock()
	old := s.parts[name]
	delete(s.parts, name)
	s.mu.Unlock()
	temp := path.Join(path.Dir(name), "."+rand.Text())
	err := s.put(ctx, temp, old, seeker, r)
	if err == nil {
		script := `chmod "$2" "$1" && mv -f -- "$1" "$3"`
		err = s.ask(ctx, temp, script, nil, nil, fmt.Sprintf("%o", mode.Perm()), name)
	}
	if err != nil && resumable && errors.As(err, new(*LostError)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.parts == nil {
			s.parts = map[string]string{}
		}
		s.parts[name] = temp
	} else if err != nil {
		s.drop(ctx, temp, old)
	}
	return err
}

func (s *shellFiles) put(ctx context.Context, temp, old string, seeker io.Seeker, r io.Reader) error {
	size := func(text string) (int64, error) { return strconv.ParseInt(strings.TrimSpace(text), 10, 64) }
	var from int64
	out := &plain.Buffer{Limit: 100}
	if old != "" {
		err := s.ask(ctx, old, `[ -e "$1" ] || exit `+strconv.Itoa(noFile)+`; wc -c <"$1"`, nil, out)
		if errors.Is(err, fs.ErrNotExist) {
			old = ""
		} else if err != nil {
			return err
		} else if from, err = size(out.String()); err != nil {
			return err
		} else if _, err := seeker.Seek(from, io.SeekStart); err != nil {
			return err
		}
	}
	sent := &counted{r: r}
	out = &plain.Buffer{Limit: 100}
	err := s.ask(ctx, temp, put, sent, out, old, strconv.FormatInt(from, 10))
	if err = cmp.Or(sent.err, err); err != nil {
		return err
	}
	if got, err := size(out.String()); err != nil || got != from+sent.n {
		return &LostError{fmt.Sprintf("%d of %d bytes arrived", got, from+sent.n)}
	}
	return nil
}

// drop removes what is left of files that were not sent, where that is possible.
func (s *shellFiles) drop(ctx context.Context, names ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	_ = s.run(ctx, append([]string{"rm", "-f", "--"}, names...), nil, nil)
}

// close removes what Put has left of files that were cut off.
func (s *shellFiles) close() {
	s.mu.Lock()
	names := slices.Collect(maps.Values(s.parts))
	s.parts = nil
	s.mu.Unlock()
	if len(names) > 0 {
		s.drop(context.Background(), names...)
	}
}

// Read copies a piece of a file.
func (s *shellFiles) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (int64, error) {
	const read = `[ -e "$1" ] || exit 44; tail -c "+$2" <"$1" | head -c "$3"`
	to := &counted{w: w}
	err := s.ask(ctx, name, read, nil, to, strconv.FormatInt(from+1, 10), strconv.FormatInt(limit, 10))
	return to.n, err
}

// Sizes lists a folder.
func (s *shellFiles) Sizes(ctx context.Context, dir string) (map[string]int64, error) {
	const list = `[ -e "$1" ] || exit 44; cd -- "$1" && find . -mindepth 1 -maxdepth 1 -exec stat -c '%s %n' -- {} +`
	out := &plain.Buffer{Limit: 16 << 20}
	if err := s.ask(ctx, dir, list, nil, out); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(out.String()) {
		size, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ./")
		if n, err := strconv.ParseInt(size, 10, 64); err == nil {
			sizes[name] = n
		}
	}
	return sizes, nil
}

// A counted pipe counts the bytes, and keeps the error of its reader.
type counted struct {
	r   io.Reader
	w   io.Writer
	n   int64
	err error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.n += int64(n); err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

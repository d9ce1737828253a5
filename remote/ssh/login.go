package ssh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/pkg/sftp"
)

// A Login is one host on which another provider runs commands and keeps files. It reconnects by itself. Its methods may be
// called from several goroutines at a time. A connection that fails is a *remote.Denied or an error that says so; a file
// that is not there is fs.ErrNotExist.
type Login struct {
	h    *host
	dir  string
	mu   sync.Mutex
	idle []*session
}

type session struct {
	client *sftp.Client
	end    func()
}

// A Status is a command that ran and ended with another status than 0.
type Status struct {
	Code int
	Text string // its standard error, as far as that is kept
}

func (e *Status) Error() string { return fmt.Sprintf("exit status %d: %s", e.Code, e.Text) }

// Open makes a Login of the host name, as ssh takes it, for the provider with that table. config is a file for ssh -F, "" for
// the user's own. It does not connect.
func Open(table, name, config string) (*Login, error) {
	if !hostForm.MatchString(name) {
		return nil, fmt.Errorf("%.100q is no host", name)
	}
	dir, err := os.MkdirTemp("", "fisub-")
	if err != nil {
		return nil, err
	}
	return &Login{h: &host{table: table, name: name, config: config, dir: dir}, dir: dir}, nil
}

// Run runs a command, without a shell's reading of its words. stdin and stdout may be nil. The error is a *Status where the
// command failed; one that ends with 255, as ssh does, has the status 254.
func (l *Login) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = quote(arg)
	}
	err := l.h.run(ctx, strings.Join(words, " ")+" || { s=$?; [ $s -ne 255 ] || s=254; exit $s; }", stdin, stdout)
	var failed *status
	if errors.As(err, &failed) {
		return &Status{failed.code, failed.text}
	}
	return err
}

// files runs do with a session for files, which lives on for the next one unless do fails or ctx ends.
func (l *Login) files(ctx context.Context, name string, do func(*sftp.Client) error) error {
	s, err := l.session(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.end)
	err = do(s.client)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case !stop():
		s.end()
		return ctx.Err()
	case err != nil && !missing:
		s.end()
	default:
		l.mu.Lock()
		l.idle = append(l.idle, s)
		l.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (l *Login) session(ctx context.Context) (*session, error) {
	l.mu.Lock()
	if n := len(l.idle); n > 0 {
		s := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		return s, nil
	}
	l.mu.Unlock()
	if _, err := l.h.connect(ctx); err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives this call
	stop := context.AfterFunc(ctx, cancel)
	client, done, err := l.h.sftp(own)
	if stop(); err != nil {
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return &session{client, sync.OnceFunc(func() { done(); cancel() })}, nil
}

// Put writes a file by a temporary name beside it, which begins with ".", and renames it when all of r is there.
func (l *Login) Put(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error {
	return l.files(ctx, name, func(c *sftp.Client) (err error) {
		temp := path.Join(path.Dir(name), "."+rand.Text())
		f, err := c.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = c.Remove(temp)
			}
		}()
		_, err = f.ReadFrom(r)
		if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
			return err
		}
		return c.PosixRename(temp, name)
	})
}

// Read copies the file from byte offset from on to w, as far as it reaches now and at most limit bytes. It opens the file anew.
func (l *Login) Read(ctx context.Context, name string, from, limit int64, w io.Writer) (n int64, err error) {
	err = l.files(ctx, name, func(c *sftp.Client) error {
		f, err := c.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return err
		}
		n, err = io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(f, limit), make([]byte, 256<<10))
		return err
	})
	return n, err
}

// Sizes gives the files and folders in dir by name, and their sizes in bytes.
func (l *Login) Sizes(ctx context.Context, dir string) (sizes map[string]int64, err error) {
	sizes = map[string]int64{}
	return sizes, l.files(ctx, dir, func(c *sftp.Client) error {
		entries, err := c.ReadDir(dir)
		for _, e := range entries {
			sizes[e.Name()] = e.Size()
		}
		return err
	})
}

// Close ends the connection.
func (l *Login) Close() error {
	l.mu.Lock()
	idle := l.idle
	l.idle = nil
	l.mu.Unlock()
	for _, s := range idle {
		s.end()
	}
	l.h.close()
	return os.RemoveAll(l.dir)
}

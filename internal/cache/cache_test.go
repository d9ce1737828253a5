package cache

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestRootIsAbsolute(t *testing.T) {
	t.Setenv("FISUB_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "home")
	if root, err := Root(); err != nil || !filepath.IsAbs(root) {
		t.Errorf("got %s, %v, want an absolute path", root, err)
	}
}

func TestKey(t *testing.T) {
	if Key("ab", "c") == Key("a", "bc") {
		t.Error("keys of different parts are equal")
	}
	if got := Key("a", "b"); got != Key("a", "b") || len(got) != 32 {
		t.Errorf("key: got %q, want 32 characters, the same each time", got)
	}
}

func TestFolderOnceForAll(t *testing.T) {
	root := t.TempDir()
	var calls atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, _, err := Folder(context.Background(), root, "build", "k", func(dir string) error {
				calls.Add(1)
				time.Sleep(20 * time.Millisecond)
				return os.WriteFile(filepath.Join(dir, "x"), []byte("1"), 0o644)
			})
			if err != nil {
				t.Error(err)
			} else if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := calls.Load(); got != 1 {
		t.Errorf("calls of fill: got %d, want 1", got)
	}
	if _, hit, err := Folder(context.Background(), root, "build", "k", nil); !hit || err != nil {
		t.Errorf("second time: got hit %v and %v, want a hit", hit, err)
	}
}

func TestFolderFailureLeavesNothing(t *testing.T) {
	root := t.TempDir()
	broken := errors.New("no compiler")
	dir, _, err := Folder(context.Background(), root, "build", "k", func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o644); err != nil {
			return err
		}
		return broken
	})
	if dir != "" || !errors.Is(err, broken) {
		t.Errorf("got %q and %v, want %v", dir, err, broken)
	}
	left, err := filepath.Glob(filepath.Join(root, "build", "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _ := filepath.Glob(filepath.Join(root, "build", ".*"))
	for _, p := range append(left, hidden...) {
		if filepath.Ext(p) != ".lock" {
			t.Errorf("left behind: %s", p)
		}
	}
}

func TestFolderWaitsUntilCancelled(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, _, err := Folder(context.Background(), root, "build", "k", func(string) error {
		_, _, err := Folder(ctx, root, "build", "k", func(string) error { return nil })
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// A lock held by another process is reported, and the wait for it is limited.
func TestLockHeld(t *testing.T) {
	fill, prune, after := fillTime, pruneTime, tellAfter
	defer func() { fillTime, pruneTime, tellAfter = fill, prune, after }()
	fillTime, pruneTime, tellAfter = 100*time.Millisecond, 100*time.Millisecond, 0
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	hold := func(name string) string {
		f, err := os.Create(filepath.Join(root, name))
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f.Name()
	}
	for name, take := range map[string]func(context.Context) error{
		"build/k.lock": func(ctx context.Context) error {
			_, _, err := Folder(ctx, root, "build", "k", func(string) error { return nil })
			return err
		},
		".hold": func(ctx context.Context) error {
			_, err := Hold(ctx, root)
			return err
		},
	} {
		path, told := hold(name), ""
		var held *HeldError
		if err := take(Telling(t.Context(), func(path string) { told = path })); !errors.As(err, &held) || told != path {
			t.Errorf("%s: got %v and %q, want a HeldError", name, err, told)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := take(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: got %v", name, err)
		}
	}
}

func TestWriteFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for _, want := range []string{"old", "new"} {
		if err := WriteFile(name, []byte(want), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || string(got) != want {
			t.Errorf("got %q and %v, want %q", got, err, want)
		}
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode: got %v and %v, want 0640", st.Mode(), err)
	}
	if err := WriteFile(filepath.Join(name, "x"), nil, 0o644); err == nil {
		t.Error("below a file: got no error")
	}
}

func TestWriteKeepsTheOld(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := WriteFile(name, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	own := &fs.PathError{Op: "open", Path: "other", Err: fs.ErrPermission}
	for _, c := range []struct {
		name string
		fill func(io.Writer) error
		want error
	}{
		{"fails", func(io.Writer) error { return own }, own},
		{"closes it", func(f io.Writer) error { return f.(io.Closer).Close() },
			&fs.PathError{Op: "write", Path: name, Err: fs.ErrClosed}},
	} {
		err := Write(name, 0o644, func(f io.Writer) error {
			if _, err := f.Write([]byte("new")); err != nil {
				return err
			}
			return c.fill(f)
		})
		if err == nil || err.Error() != c.want.Error() {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		data, _ := os.ReadFile(name)
		if left, _ := os.ReadDir(dir); string(data) != "old" || len(left) != 1 {
			t.Errorf("%s: the file holds %q, and the folder %d files; want the old one alone", c.name, data, len(left))
		}
	}
}

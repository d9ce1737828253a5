package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nest creates n nested folders in dir, and lets fill fill each, an open folder.
func nest(t testing.TB, dir string, n int, fill func(at, depth int) error) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for depth := 0; depth < n && err == nil; depth++ {
		next := -1
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			next, err = unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
		if at = next; err == nil {
			err = fill(at, depth)
		}
	}
	unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
}

func touch(at int, name string) error {
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_WRONLY, 0o600)
	unix.Close(fd)
	return err
}

// The path of the innermost folder is longer than a path may be, and there are more folders than a process may have
// open files.
func TestRemoveDeep(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	few := syscall.Rlimit{Cur: 256, Max: limit.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const depths = 5000
	nest(t, dir, depths, func(at, depth int) (err error) {
		if depth < depths-1 {
			return nil
		}
		for i := range 200 {
			err = errors.Join(err, touch(at, fmt.Sprintf("%s%03d", strings.Repeat("x", 252), i)))
		}
		return err
	})
	if err := RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the folder is still there")
	}
}

// Folders of several batches of names, at every depth at which batches are forgotten.
func TestRemoveWide(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	nest(t, dir, 3*maxBatches, func(at, depth int) (err error) {
		n := 20
		if depth%maxBatches == 0 {
			n = maxNames + 1
		}
		for i := range n {
			if name := fmt.Sprint(i); i%2 == 0 {
				err = errors.Join(err, touch(at, name))
			} else {
				err = errors.Join(err, unix.Mkdirat(at, name, 0o700))
			}
		}
		return err
	})
	if err := RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the folder is still there")
	}
}

// Links are removed, not followed.
func TestRemoveLinks(t *testing.T) {
	root := t.TempDir()
	outside, dir := filepath.Join(root, "outside"), filepath.Join(root, "dir")
	if err := errors.Join(os.MkdirAll(filepath.Join(outside, "sub"), 0o500), os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700),
		os.Symlink(outside, filepath.Join(dir, "a", "link")), os.Symlink("..", filepath.Join(dir, "a", "b", "up")),
		os.Symlink("self", filepath.Join(dir, "self")), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "a"), dir, dir, filepath.Join(dir, "none")} {
		if err := RemoveAll(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if st, err := os.Stat(filepath.Join(outside, "sub")); err != nil || st.Mode().Perm() != 0o500 {
		t.Errorf("got %v, %v; want the target of the link unchanged", st, err)
	}
	link := filepath.Join(root, "link")
	if err := errors.Join(os.Symlink("outside", link), RemoveAll(link)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}

func BenchmarkRemoveDeep(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "dir")
	for b.Loop() {
		b.StopTimer()
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		nest(b, dir, 20_000, func(int, int) error { return nil })
		b.StartTimer()
		if err := RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
}

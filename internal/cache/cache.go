// Package cache keeps what can be made again: built kernels, toolchains, synthesised blobs. An entry appears whole or
// not at all, also when several processes make it at once or one of them is killed.
package cache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fisub/internal/hint"
)

// ErrNoFolder says that the environment names no folder for the cache.
var ErrNoFolder = hint.Wrap(errors.New("no folder"), "set FISUB_CACHE to a folder that can be written to")

// Root is the folder of the cache, absolute: $FISUB_CACHE, else fisub in the user's cache folder. It need not exist.
// The error is an ErrNoFolder.
func Root() (string, error) {
	if dir := os.Getenv("FISUB_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache: %w: %s", ErrNoFolder, err.Error())
	}
	return filepath.Abs(filepath.Join(dir, "fisub"))
}

// Key is a file name that stands for parts: equal for equal parts only.
func Key(parts ...string) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// Folder returns the folder root/kind/key. Where it is missing, fill makes its contents in a temporary folder beside
// it, which is synced and renamed; hit tells that fill was not called. An error of fill is returned as it is and leaves
// nothing behind. Processes that want the same entry wait for the one that makes it, up to a *HeldError.
func Folder(ctx context.Context, root, kind, key string, fill func(dir string) error) (dir string, hit bool,
	err error) {
	parent := filepath.Join(root, kind)
	dir = filepath.Join(parent, key)
	if isDir(dir) {
		use(dir)
		return dir, true, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", false, err
	}
	unlock, err := lock(ctx, dir+".lock", syscall.LOCK_EX, fillTime)
	if err != nil {
		return "", false, err
	}
	defer unlock()
	if isDir(dir) {
		return dir, true, nil
	}
	sweepFolders(parent, key)
	tmp, err := os.MkdirTemp(parent, "."+key+".*")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return "", false, err
	}
	if err := syncTree(tmp); err != nil {
		return "", false, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", false, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", false, err
	}
	return dir, false, nil
}

// sweepFolders removes what processes that were killed have left of folders that they filled: those of own, whose lock
// the caller has, and those whose lock is free.
func sweepFolders(parent, own string) {
	left, _ := filepath.Glob(filepath.Join(parent, ".*.*"))
	for _, path := range left {
		key, _, _ := strings.Cut(filepath.Base(path)[1:], ".")
		if key == own {
			os.RemoveAll(path)
			continue
		}
		if unlock, err := lock(context.Background(), filepath.Join(parent, key+".lock"), syscall.LOCK_EX, 0); err == nil {
			os.RemoveAll(path)
			unlock()
		}
	}
}

// WriteFile is Write of data.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return Write(path, perm, func(f io.Writer) error {
		_, err := f.Write(data)
		return err
	})
}

// Write has fill write the file path through a temporary file beside it, which is synced and renamed: a reader sees the
// old or the new content, whatever happens. An error of that file names path; any other one of fill comes back as it
// is.
func Write(path string, perm fs.FileMode, fill func(f io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		var file *fs.PathError
		errors.As(err, &file)
		return &fs.PathError{Op: "write", Path: path, Err: file.Err}
	}
	defer os.Remove(f.Name())
	err = cmp.Or(fill(f), f.Sync(), f.Chmod(perm), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	var file *fs.PathError
	var rename *os.LinkError
	if errors.As(err, &file) && file.Path == f.Name() {
		err = &fs.PathError{Op: "write", Path: path, Err: file.Err}
	} else if errors.As(err, &rename) && rename.Old == f.Name() {
		err = &fs.PathError{Op: "write", Path: path, Err: rename.Err}
	}
	return err
}

// Output writes a result where the user wants it: to stdout where name is "-", else into a file, which appears whole or
// not at all; a link is followed; a device or pipe is written to directly.
func Output(stdout io.Writer, name string, data []byte) error {
	if name == "-" {
		_, err := stdout.Write(data)
		return err
	}
	st, err := os.Stat(name)
	if l, lerr := os.Lstat(name); lerr == nil && l.Mode()&fs.ModeSymlink != 0 && (err != nil || st.Mode().IsRegular()) {
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return err
		}
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && st.IsDir():
		return fmt.Errorf("%s: is a folder", name)
	case err == nil && !st.Mode().IsRegular():
		return os.WriteFile(name, data, 0o644)
	}
	return WriteFile(name, data, 0o644)
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// For how long another process may have a lock: the one that makes an entry, which may compile or fetch it, and the one
// that prunes.
var (
	fillTime  = 20 * time.Minute
	pruneTime = 20 * time.Second
)

// A HeldError says that another process has a lock for longer than it should.
type HeldError struct {
	Path string
	For  time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s: another process has held the lock for %v: fuser %s shows which", e.Path, e.For, e.Path)
}

type waiting struct{}

// Telling returns a context with which a function of this package calls tell, with the path, when it has to wait for a
// lock that another process has.
func Telling(ctx context.Context, tell func(path string)) context.Context {
	return context.WithValue(ctx, waiting{}, tell)
}

// tellAfter is how long a lock is waited for without a word.
var tellAfter = 3 * time.Second

// lock takes a lock in the way how, and gives up with a *HeldError after most.
func lock(ctx context.Context, path string, how int, most time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tell, _ := ctx.Value(waiting{}).(func(string))
	for begun := time.Now(); ; {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		waited := time.Since(begun)
		if waited >= most {
			f.Close()
			return nil, &HeldError{path, most}
		}
		if tell != nil && waited > tellAfter {
			tell(path)
			tell = nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

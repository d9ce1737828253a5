// Package cache stores files that can be recreated: built kernels, toolchains, synthesised blobs. Entries are complete
// or absent, even if several processes create one at once or are killed.
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

// ErrNoFolder reports that the environment does not define a cache folder.
var ErrNoFolder = hint.Wrap(errors.New("no folder"), setFolder)

const setFolder = "set FISUB_CACHE to a writable folder"

// Unwritable attaches a hint to err if the cache cannot be written to.
func Unwritable(err error) error {
	for _, cause := range []error{fs.ErrPermission, fs.ErrNotExist, syscall.EROFS, syscall.ENOTDIR} {
		if errors.Is(err, cause) {
			return hint.Wrap(err, setFolder)
		}
	}
	return err
}

// Root returns the absolute path of the cache, which need not exist: $FISUB_CACHE, else fisub in the user's cache
// folder. The error wraps ErrNoFolder.
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

// Key returns a file name derived from parts. Different parts yield different names.
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

// Folder returns the folder root/kind/key. If it is missing, fill creates its contents in a temporary folder, which is
// then synced and renamed. hit reports that fill was not called. An error of fill is returned unchanged and leaves
// nothing behind. Folder waits for a process that is creating the same entry, up to a *HeldError.
func Folder(ctx context.Context, root, kind, key string, fill func(dir string) error) (dir string, hit bool,
	err error) {
	parent := filepath.Join(root, kind)
	dir = filepath.Join(parent, key)
	if isDir(dir) {
		Use(dir)
		return dir, true, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", false, Unwritable(err)
	}
	unlock, err := lock(ctx, dir+".lock", syscall.LOCK_EX, fillTime)
	if err != nil {
		return "", false, Unwritable(err)
	}
	defer unlock()
	if isDir(dir) {
		return dir, true, nil
	}
	sweepFolders(parent, key)
	tmp, err := os.MkdirTemp(parent, "."+key+".*")
	if err != nil {
		return "", false, Unwritable(err)
	}
	defer RemoveAll(tmp)
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
		return "", false, Unwritable(err)
	}
	return dir, false, nil
}

// sweepFolders removes half-filled folders of killed processes: those for the key own, whose lock the caller holds, and
// those whose lock is free.
func sweepFolders(parent, own string) {
	left, _ := filepath.Glob(filepath.Join(parent, ".*.*"))
	for _, path := range left {
		key, _, _ := strings.Cut(filepath.Base(path)[1:], ".")
		if key == own {
			RemoveAll(path)
			continue
		}
		if unlock, err := lock(context.Background(), filepath.Join(parent, key+".lock"), syscall.LOCK_EX, 0); err == nil {
			RemoveAll(path)
			unlock()
		}
	}
}

// WriteFile writes data like Write.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return Write(path, perm, func(f io.Writer) error {
		_, err := f.Write(data)
		return err
	})
}

// Write writes the file path. fill writes to a temporary file, which is then synced and renamed, so that readers see
// either the old or the new content. Errors of the temporary file name path; other errors of fill are returned
// unchanged.
func Write(path string, perm fs.FileMode, fill func(f io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		file, _ := errors.AsType[*fs.PathError](err)
		return &fs.PathError{Op: "write", Path: path, Err: file.Err}
	}
	defer os.Remove(f.Name())
	err = cmp.Or(fill(f), f.Sync(), f.Chmod(perm), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok && file.Path == f.Name() {
		err = &fs.PathError{Op: "write", Path: path, Err: file.Err}
	} else if rename, ok := errors.AsType[*os.LinkError](err); ok && rename.Old == f.Name() {
		err = &fs.PathError{Op: "write", Path: path, Err: rename.Err}
	}
	return err
}

// Output writes a result to stdout if name is "-", else to a file, which is complete or absent. It follows symbolic
// links, and writes to a device or pipe directly.
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

// Time limits for locks of other processes that create an entry, which may include compiling or downloading it, or
// prune.
var (
	fillTime  = 20 * time.Minute
	pruneTime = 20 * time.Second
)

// A HeldError reports that another process has held a lock for too long.
type HeldError struct {
	Path string
	For  time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s: locked by another process for %v; fuser %s shows which", e.Path, e.For, e.Path)
}

type waiting struct{}

// Telling returns a context with which this package calls tell, with the path of the lock, if it has to wait for
// another process.
func Telling(ctx context.Context, tell func(path string)) context.Context {
	return context.WithValue(ctx, waiting{}, tell)
}

// tellAfter is the time to wait for a lock before calling tell.
var tellAfter = 3 * time.Second

// lock takes a flock of type how. It returns a *HeldError after waiting for most.
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

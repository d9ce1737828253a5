package cache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RemoveAll is like os.RemoveAll for folders in which a submission may have created anything, also inaccessible folders
// and folders nested to any depth. It follows no links and changes nothing outside path. It needs few descriptors, and
// time in proportion to the number of files.
func RemoveAll(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	path = filepath.Clean(path)
	parent, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	r := &remover{at: int(parent.Fd())}
	if err := r.remove(filepath.Base(path)); err != nil {
		err = &fs.PathError{Op: "remove", Path: path, Err: err}
		parent.Close()
		return err
	}
	return parent.Close()
}

// A remover removes a tree. It has two folders open at a time at most, and finds the way back by "..", which it checks.
type remover struct {
	at    int      // an open folder
	stack []folder // at and its parents, the outermost first
	err   error    // the first error
}

// A folder is one level of the tree.
type folder struct {
	name     string
	dev, ino uint64
	names    []string // a batch of its entries, not yet removed
	kept     int      // number of its entries that cannot be removed
}

// maxNames is the number of names in a batch, and maxBatches the number of batches in memory.
const maxNames, maxBatches = 1024, 64

// remove removes the folder name in the open folder r.at, and everything in it. It does not close r.at.
func (r *remover) remove(name string) error {
	top := r.at
	if err := r.enter(name); err != nil {
		return err
	}
	for len(r.stack) > 0 {
		f := &r.stack[len(r.stack)-1]
		if len(f.names) == 0 {
			if err := r.read(f); err != nil {
				r.fail(err)
				f.names = nil
			}
		}
		if len(f.names) == 0 {
			if err := r.leave(top); err != nil {
				return err
			}
			continue
		}
		name := f.names[len(f.names)-1]
		f.names = f.names[:len(f.names)-1]
		err := unix.Unlinkat(r.at, name, 0)
		if err == nil || err == unix.ENOENT { //nolint:errorlint // x/sys returns plain numbers
			continue
		}
		if r.enter(name) != nil { // not a folder, or a foreign one
			r.fail(err)
			f.kept++
		}
	}
	return r.err
}

// fail keeps the first error.
func (r *remover) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// enter replaces r.at by its subfolder name, which it makes accessible. It closes the old folder unless that is the
// outermost one.
func (r *remover) enter(name string) error {
	const folderOnly = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(r.at, name, unix.O_RDONLY|folderOnly, 0)
	var st unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&0o700 != 0o700 {
			err = unix.Fchmod(fd, 0o700)
		}
	} else if errors.Is(err, unix.EACCES) {
		// The path of a descriptor cannot be redirected by a link.
		var closed int
		if closed, err = unix.Openat(r.at, name, unix.O_PATH|folderOnly, 0); err != nil {
			return err
		}
		own := "/proc/self/fd/" + strconv.Itoa(closed)
		if err = unix.Chmod(own, 0o700); err == nil {
			fd, err = unix.Open(own, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(closed)
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
	} else {
		return err
	}
	if err != nil {
		if fd > 0 {
			unix.Close(fd)
		}
		return err
	}
	if len(r.stack) > 0 {
		unix.Close(r.at)
	}
	r.at = fd
	if n := len(r.stack); n >= maxBatches {
		r.stack[n-maxBatches].names = nil // it will be read again
	}
	r.stack = append(r.stack, folder{name: name, dev: uint64(st.Dev), ino: st.Ino}) //nolint:unconvert // for 32 bits
	return nil
}

// read reads the next batch of the names in f, the folder r.at. There are none left if all entries that it finds are
// known to be kept.
func (r *remover) read(f *folder) error {
	fd, err := unix.Openat(r.at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), f.name)
	defer dir.Close()
	// What is kept is found again by each pass, so a pass reads that many names more.
	names, err := dir.Readdirnames(maxNames + f.kept)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(names) > f.kept {
		f.names, f.kept = names, 0
	}
	return nil
}

// leave replaces r.at by its parent and removes the folder left, which is empty if no entry was kept. The outermost
// parent is top.
func (r *remover) leave(top int) error {
	f := r.stack[len(r.stack)-1]
	r.stack = r.stack[:len(r.stack)-1]
	up := top
	if n := len(r.stack); n > 0 {
		var err error
		if up, err = unix.Openat(r.at, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			unix.Close(r.at)
			return err
		}
		var st unix.Stat_t
		err = unix.Fstat(up, &st)
		if want := r.stack[n-1]; err == nil && (uint64(st.Dev) != want.dev || st.Ino != want.ino) { //nolint:unconvert
			err = fmt.Errorf("%s: moved by another process", f.name)
		}
		if err != nil {
			unix.Close(up)
			unix.Close(r.at)
			return err
		}
	}
	unix.Close(r.at)
	r.at = up
	if err := unix.Unlinkat(up, f.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, syscall.ENOENT) {
		r.fail(err)
		if n := len(r.stack); n > 0 {
			r.stack[n-1].kept++
		}
	}
	return nil
}

// TempDir is TempDirIn in the system's folder for temporary files.
func TempDir(name string) (dir string, remove func(), err error) {
	return TempDirIn(os.TempDir(), name)
}

// TempDirIn creates a folder NAME-* in parent, which the caller must remove. It first removes folders of killed
// processes.
func TempDirIn(parent, name string) (dir string, remove func(), err error) {
	sweep(filepath.Join(parent, name+"-"))
	if dir, err = os.MkdirTemp(parent, name+"-*"); err != nil {
		return "", nil, err
	}
	held, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		_ = RemoveAll(dir) // a later sweep tries again
		held.Close()
	}, own(held)
}

// own locks a new file or folder. A lock that another process has on it also protects it from sweep.
func own(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}
	return nil
}

// sweep removes this user's files and folders named prefix plus a number, if they are not locked. It skips those
// younger than a minute, which may not be locked yet.
func sweep(prefix string) {
	left, _ := filepath.Glob(prefix + "*")
	for _, path := range left {
		st, err := os.Lstat(path)
		if err != nil || !st.IsDir() && !st.Mode().IsRegular() || time.Since(st.ModTime()) < time.Minute ||
			strings.Trim(path[len(prefix):], "0123456789") != "" {
			continue
		}
		if own, ok := st.Sys().(*syscall.Stat_t); !ok || int(own.Uid) != os.Getuid() {
			continue
		}
		if st.IsDir() && st.Mode()&0o400 == 0 {
			_ = os.Chmod(path, 0o700)
		}
		if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); err == nil {
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				_ = RemoveAll(path)
			}
			f.Close()
		}
	}
}

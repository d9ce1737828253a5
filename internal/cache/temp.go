package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// TempFile makes a file NAME-* in dir, for this process until it closes it and removes it. Those that a process which
// was killed has left there are removed first.
func TempFile(dir, name string) (*os.File, error) {
	sweep(filepath.Join(dir, name+"-"))
	f, err := os.CreateTemp(dir, name+"-*")
	if err != nil {
		return nil, err
	}
	return f, own(f)
}

// TempDir is TempDirIn the folder for temporary files.
func TempDir(name string) (dir string, remove func(), err error) {
	return TempDirIn(os.TempDir(), name)
}

// TempDirIn is TempFile for a folder, which remove removes.
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
		os.RemoveAll(dir)
		held.Close()
	}, own(held)
}

// own locks what was just made. Whoever has locked it meanwhile keeps it from being swept just as well.
func own(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}
	return nil
}

// sweep removes what is named prefix and a number, is older than the moment in which one gets its lock, and is this
// user's and nobody's in use.
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
		if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); err == nil {
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				os.RemoveAll(path)
			}
			f.Close()
		}
	}
}

package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

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

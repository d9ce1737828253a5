package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// holdName is the file below the root of a cache whose lock those have who use entries.
const holdName = ".hold"

func hold(root string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(root, holdName), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		} else if !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
	}
}

// Hold keeps the entries below root where they are until release is called: Prune removes none meanwhile.
func Hold(root string) (release func(), err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	f, err := hold(root, syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Prune removes the entries root/KIND/NAME that nobody has used for age, and of the others those that were not used for
// longest until all take at most size bytes. While somebody holds the cache it removes nothing.
func Prune(root string, age time.Duration, size int64) error {
	f, err := hold(root, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer f.Close()
	type entry struct {
		path string
		used time.Time
		size int64
	}
	var all []entry
	var total int64
	paths, _ := filepath.Glob(filepath.Join(root, "*", "*"))
	for _, path := range paths {
		e := entry{path: path}
		_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if st, err := d.Info(); err == nil {
				e.size += st.Size()
				if st.ModTime().After(e.used) {
					e.used = st.ModTime()
				}
			}
			return nil
		})
		if strings.HasSuffix(path, ".lock") {
			continue
		}
		all, total = append(all, e), total+e.size
	}
	slices.SortFunc(all, func(a, b entry) int { return a.used.Compare(b.used) })
	var faults []error
	for _, e := range all {
		if total > size || time.Since(e.used) > age {
			faults = append(faults, os.RemoveAll(e.path), remove(e.path+".lock"))
			total -= e.size
		}
	}
	return errors.Join(faults...)
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// use notes that an entry was used, where that was not noted lately.
func use(path string) {
	if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > time.Hour {
		now := time.Now()
		_ = os.Chtimes(path, now, now)
	}
}

package cache

import (
	"context"
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

// Hold keeps the entries below root where they are until release is called: Prune removes none meanwhile. If another
// process has the cache for longer than a Prune takes, the error is a *HeldError.
func Hold(ctx context.Context, root string) (release func(), err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, filepath.Join(root, holdName), syscall.LOCK_SH, pruneTime)
}

// Prune removes the entries root/KIND/NAME that nobody has used for age, and of the others those that were not used for
// longest until all take at most size bytes. While somebody holds the cache it removes nothing.
func Prune(root string, age time.Duration, size int64) error {
	unlock, err := lock(context.Background(), filepath.Join(root, holdName), syscall.LOCK_EX, 0)
	if err != nil {
		if errors.As(err, new(*HeldError)) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer unlock()
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

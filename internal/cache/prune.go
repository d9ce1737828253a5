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

// holdName is a lock file in the root of a cache. Processes that use entries share its lock.
const holdName = ".hold"

// Hold prevents Prune from removing entries below root until release is called. It returns a *HeldError if another
// process locks the cache for longer than a Prune takes.
func Hold(ctx context.Context, root string) (release func(), err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, filepath.Join(root, holdName), syscall.LOCK_SH, pruneTime)
}

// Prune removes the entries root/KIND/NAME not used for age, then the least recently used ones until the rest take at
// most size bytes. It does nothing while a process holds the cache.
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
			faults = append(faults, RemoveAll(e.path), remove(e.path+".lock"))
			total -= e.size
		}
	}
	return errors.Join(faults...)
}

// inUse is how long PruneFiles keeps a file after its last recorded use: another process may be about to open it.
const inUse = 2 * time.Hour

// PruneFiles removes the files below dir not used for age, then the least recently used ones until the rest take at
// most size bytes. It keeps files used in the last two hours (see Use), and ignores files that it cannot read.
func PruneFiles(dir string, age time.Duration, size int64) error {
	type file struct {
		path string
		used time.Time
		size int64
	}
	var all []file
	var total int64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if st, err := d.Info(); err == nil {
			all, total = append(all, file{path, st.ModTime(), st.Size()}), total+st.Size()
		}
		return nil
	})
	slices.SortFunc(all, func(a, b file) int { return a.used.Compare(b.used) })
	var faults []error
	for _, f := range all {
		if unused := time.Since(f.used); unused > age || total > size && unused > inUse {
			faults = append(faults, remove(f.path))
			total -= f.size
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

// Use records the use of an entry or file, at most once an hour.
func Use(path string) {
	if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > time.Hour {
		now := time.Now()
		_ = os.Chtimes(path, now, now)
	}
}

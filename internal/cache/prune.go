package cache

import (
	"context"
	"errors"
	"io/fs"
	"math"
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
	var all []item
	paths, _ := filepath.Glob(filepath.Join(root, "*", "*"))
	for _, path := range paths {
		if strings.HasSuffix(path, ".lock") {
			continue
		}
		e := item{path: path}
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
		all = append(all, e)
	}
	return drop(all, age, size, math.MinInt64, func(path string) error {
		return errors.Join(RemoveAll(path), remove(path+".lock"))
	})
}

// An item is an entry, or a file.
type item struct {
	path string
	used time.Time
	size int64
}

// drop removes the items not used for age, then the least recently used ones, except those used in the last spare,
// until the rest take at most size bytes.
func drop(all []item, age time.Duration, size int64, spare time.Duration, remove func(path string) error) error {
	var total int64
	for _, it := range all {
		total += it.size
	}
	slices.SortFunc(all, func(a, b item) int { return a.used.Compare(b.used) })
	var faults []error
	for _, it := range all {
		if unused := time.Since(it.used); unused > age || total > size && unused > spare {
			faults = append(faults, remove(it.path))
			total -= it.size
		}
	}
	return errors.Join(faults...)
}

// inUse is how long PruneFiles keeps a file after its last recorded use: another process may be about to open it.
const inUse = 2 * time.Hour

// PruneFiles removes the files below dir not used for age, then the least recently used ones until the rest take at
// most size bytes. It keeps files used in the last two hours (see Use), and ignores files that it cannot read.
func PruneFiles(dir string, age time.Duration, size int64) error {
	var all []item
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if st, err := d.Info(); err == nil {
			all = append(all, item{path, st.ModTime(), st.Size()})
		}
		return nil
	})
	return drop(all, age, size, inUse, remove)
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

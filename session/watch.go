package session

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Watch calls run, and again whenever a file among roots, or below those that are folders, has changed and all have
// stayed as they are for a moment. The context of a run ends when something changes. Watch returns when ctx ends.
func Watch(ctx context.Context, roots []string, run func(context.Context)) {
	for ctx.Err() == nil {
		before := filesOf(roots)
		rctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			run(rctx)
		}()
		tick := time.NewTicker(200 * time.Millisecond)
		for last := before; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			now := filesOf(roots)
			if ctx.Err() != nil || now != before && now == last {
				break
			}
			last = now
		}
		tick.Stop()
		cancel()
		<-ended
	}
}

// filesOf says of all files when they were changed last. Folders whose name begins with a dot are left out.
func filesOf(roots []string) string {
	var all strings.Builder
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil // it has just gone
			case d.IsDir() && name != root && strings.HasPrefix(d.Name(), "."):
				return filepath.SkipDir
			case d.IsDir():
				return nil
			}
			if st, err := d.Info(); err == nil {
				fmt.Fprintln(&all, name, st.Size(), st.ModTime().UnixNano())
			}
			return nil
		})
	}
	return all.String()
}

package trace

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Linux's limits for the name of a file and for a path, in bytes. The latter leaves room for the folder of the sources.
const maxName, maxPath = 255, 4096 - 256

// unwritable returns the index of a path that cannot be written below a folder together with the others, and the
// reason; or "" if all can be written.
func unwritable(paths []string) (fault string, index int) {
	type file struct {
		path  string // without redundant parts
		key   string // sorts a folder right before everything in it
		index int
	}
	var files []file
	for i, p := range paths {
		clean := path.Clean(p)
		switch {
		case clean == "." || strings.HasSuffix(p, "/"):
			return fmt.Sprintf("Source path '%s' is not a file", p), i
		case strings.ContainsRune(p, 0):
			return fmt.Sprintf("Source path %q has a NUL", p), i
		case len(clean) > maxPath:
			return fmt.Sprintf("Source path is too long: %d bytes, at most %d are possible", len(clean), maxPath), i
		}
		for name := range strings.SplitSeq(clean, "/") {
			if len(name) > maxName {
				return fmt.Sprintf("Source path has a name that is too long: %d bytes, at most %d are possible", len(name),
					maxName), i
			}
		}
		files = append(files, file{clean, strings.ReplaceAll(clean, "/", "\x00"), i})
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(strings.Compare(a.key, b.key), a.index-b.index)
	})
	for i := range len(files) - 1 {
		switch a, b := files[i], files[i+1]; {
		case a.path == b.path:
			return fmt.Sprintf("Source paths '%s' and '%s' are the same file", paths[a.index], paths[b.index]), b.index
		case strings.HasPrefix(b.path, a.path+"/"):
			return fmt.Sprintf("Source path '%s' is both a file and a folder, of '%s'", paths[a.index], paths[b.index]), b.index
		}
	}
	return "", 0
}

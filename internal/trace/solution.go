package trace

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/hint"
)

// Hash returns the content hash, 40 lower-case hex digits: SHA-1 over definition, language, entry point, binding,
// dependencies and sources. Name, author, description, target hardware and calling style are not part of it.
func (s *Solution) Hash() string {
	h := sha1.New()
	write := func(text string) { h.Write([]byte(text)) }
	write(s.Definition)
	write(string(s.Spec.Language))
	write(s.Spec.EntryPoint)
	write(s.Spec.Binding)
	for _, dep := range s.Spec.Dependencies {
		write(dep)
	}
	for _, src := range s.Sources {
		write(src.Path)
		write(src.Content)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Entry returns the file and symbol of the entry point. symbol is "" without "::".
func (s *Solution) Entry() (file, symbol string) {
	file, symbol, _ = strings.Cut(s.Spec.EntryPoint, "::")
	return file, symbol
}

// plainPath matches source paths without characters that a shell, a compiler or a build file gives a meaning: nvcc
// passes names through a shell and splits some at commas, and torch and tvm-ffi write them to a build.ninja without
// quotes.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9_+.][A-Za-z0-9_+@./-]*$`)

// CheckNames returns an error with a hint if a builder could take a part of a source's path for something else. It
// must be called before anything of the solution is written or built. The contest's builders have no such rule.
func (s *Solution) CheckNames() error {
	for _, f := range s.Sources {
		if !plainPath.MatchString(f.Path) {
			return hint.Wrap(fmt.Errorf("source path %q has characters that builders do not quote", f.Path), NameHint)
		}
	}
	return nil
}

// NameHint is the hint of CheckNames.
const NameHint = "rename it with letters of ASCII, digits, and any of . _ - + @"

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

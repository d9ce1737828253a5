package trace

import (
	"fmt"
	"regexp"

	"fisub/internal/hint"
)

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

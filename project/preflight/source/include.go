package source

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// installed are folders of headers that a CUDA compiler may find outside the solution.
var installed = strings.Fields("ATen cooperative_groups crt c10 cub cuda cute cutlass dlpack fatbinary flashinfer nv " +
	"nvshmem nvtx3 pybind11 sys thrust torch tvm")

// A directive of the preprocessor, with the name of the file if it is a quoted #include.
var directive = regexp.MustCompile(`^[ \t]*#[ \t]*(if|ifdef|ifndef|endif|include)\b(?:[ \t]*"([^"\n]+)")?`)

// Includes returns the quoted #include lines of the packed C++ sources whose headers are not packed. It ignores lines
// below an #if other than a header's guard. left reports whether the source folder has a file of that path that is not
// packed. For a packed solution left is nil: then a header in a folder counts as left out, unless it may belong to an
// installed library.
func Includes(sol *trace.Solution, left func(name string) bool) []Finding {
	n := &inspector{sol: sol, alike: map[[2]string]int{}}
	for _, s := range n.cpp() {
		pos, depth, first := 0, 0, true
		for line := range strings.Lines(blank(s.Content)) {
			var m []int
			if strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") {
				m = directive.FindStringSubmatchIndex(line)
			}
			if m != nil {
				switch word := line[m[2]:m[3]]; {
				case word == "endif":
					depth = max(0, depth-1)
				case word == "ifndef" && first: // the guard; its #endif ends the file
				case word != "include":
					depth++
				case depth == 0 && m[4] >= 0:
					n.include(s, line[m[4]:m[5]], pos+m[4]-1, left)
				}
				first = false
			}
			pos += len(line)
		}
	}
	return limit(n.findings)
}

func (n *inspector) include(s trace.SourceFile, name string, pos int, left func(name string) bool) {
	if n.packed(path.Clean(name)) {
		return
	}
	switch top, _, folder := strings.Cut(name, "/"); {
	case left != nil && (left(path.Join(path.Dir(s.Path), name)) || left(path.Clean(name))):
		n.mark(Error, "include-dropped", s, pos, DroppedHint(name), DroppedText, name)
	case left == nil && folder && !path.IsAbs(name) && top != ".." && !slices.Contains(installed, top):
		n.mark(Error, "include-dropped", s, pos, DroppedHint(name),
			"%s is not packed, and not a header of CUDA, CUTLASS, PyTorch or tvm-ffi", name)
	}
}

// packed reports whether a source has that name, in any folder.
func (n *inspector) packed(name string) bool {
	return slices.ContainsFunc(n.sol.Sources, func(s trace.SourceFile) bool {
		return s.Path == name || strings.HasSuffix("/"+path.Clean(s.Path), "/"+strings.TrimLeft(name, "./"))
	})
}

// DroppedText is the message for a header, %s, that the packer leaves out.
const DroppedText = "%s exists, but is not packed"

// DroppedHint returns the hint for a header that the packer leaves out.
func DroppedHint(name string) string {
	if path.Dir(name) != "." {
		return "move it next to the kernel: subfolders are not packed"
	}
	return "rename it to end in .cuh, .h or .hpp"
}

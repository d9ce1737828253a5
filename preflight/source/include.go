package source

import (
	"path"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// installed are the folders of headers that a compiler of CUDA may find without any of the solution's.
var installed = strings.Fields("ATen cooperative_groups crt c10 cub cuda cute cutlass dlpack fatbinary flashinfer nv " +
	"nvshmem nvtx3 pybind11 sys thrust torch tvm")

// Includes returns what quoted #include lines of the packed C++ sources lead to that is not packed. left reports
// whether the packer leaves out a file of that path in the source folder. It is nil if there is no such folder: then a
// header in a folder counts as left out, unless it may be one of an installed library.
func Includes(sol *trace.Solution, left func(name string) bool) []Finding {
	n := &inspector{sol: sol, alike: map[[2]string]int{}}
	for _, s := range n.cpp() {
		n.tokens = scan(s.Content, n.tokens)
		for _, t := range n.tokens {
			_, text, ok := strings.Cut(t.text, `"`)
			name, _, closed := strings.Cut(text, `"`)
			if t.kind != include || !ok || !closed || t.maybe || n.packed(path.Clean(name)) {
				continue
			}
			near := path.Join(path.Dir(s.Path), name)
			switch top, _, folder := strings.Cut(name, "/"); {
			case left != nil && (left(near) || left(path.Clean(name))):
				n.add(Error, "include-dropped", s.Path, s.Content, t.pos+strings.IndexByte(t.text, '"'), DroppedHint(name),
					DroppedText, name)
			case left == nil && folder && !path.IsAbs(name) && top != ".." && !slices.Contains(installed, top):
				n.add(Error, "include-dropped", s.Path, s.Content, t.pos+strings.IndexByte(t.text, '"'), DroppedHint(name),
					"%s is not packed, and no header of CUDA, CUTLASS, PyTorch or tvm-ffi", name)
			}
		}
	}
	return limit(n.findings)
}

// packed reports whether a source has that name, in whatever folder.
func (n *inspector) packed(name string) bool {
	return slices.ContainsFunc(n.sol.Sources, func(s trace.SourceFile) bool {
		return s.Path == name || strings.HasSuffix("/"+path.Clean(s.Path), "/"+strings.TrimLeft(name, "./"))
	})
}

// DroppedText says that a header, %s, is left out.
const DroppedText = "%s is there, but the packer leaves it out"

// DroppedHint is the advice for a header that the packer leaves out.
func DroppedHint(name string) string {
	if path.Dir(name) != "." {
		return "move it beside the kernel: subfolders are not packed"
	}
	return "rename it to end in .cuh, .h or .hpp"
}

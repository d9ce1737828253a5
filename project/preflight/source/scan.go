package source

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// maxAlike limits the findings of one kind in a file. The last one states the number of omitted ones.
const maxAlike = 5

// limit keeps maxAlike findings of each kind in a file.
func limit(findings []Finding) []Finding {
	type kind struct{ path, code string }
	count := map[kind]int{}
	var out []Finding
	for _, f := range findings {
		k := kind{f.Path, f.Code}
		if count[k]++; count[k] <= maxAlike {
			out = append(out, f)
		}
	}
	for i := len(out) - 1; i >= 0; i-- {
		k := kind{out[i].Path, out[i].Code}
		if more := count[k] - maxAlike; more > 0 {
			out[i].Msg += fmt.Sprintf(" (and %d more in this file)", more)
			count[k] = 0
		}
	}
	return out
}

// blank returns C++ with its comments overwritten with spaces.
func blank(text string) string {
	b := []byte(text)
	for i := 0; i < len(b); i++ {
		end := i
		switch {
		case b[i] == '"': // a string may have slashes
			for i++; i < len(b) && b[i] != '"' && b[i] != '\n'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(text[i:], "//"):
			end = after(text, i, "\n")
		case strings.HasPrefix(text[i:], "/*"):
			end = after(text, i+2, "*/")
		}
		for at := i; at < end; at++ {
			if b[at] != '\n' {
				b[at] = ' '
			}
		}
		i = max(i, end-1)
	}
	return string(b)
}

// after returns the offset after the next end in text, or the length of text.
func after(text string, i int, end string) int {
	if n := strings.Index(text[i:], end); n >= 0 {
		return i + n + len(end)
	}
	return len(text)
}

// images are the first bytes of ELF files and fatbins as strings, in base64 and as numbers.
var images = []string{`\x7fELF`, `\x7FELF`, `\177ELF`, `\x7f" "ELF`, "\x7fELF", `"f0VMR`, `'f0VMR`, `"UO1Vu`, `'UO1Vu`,
	"0xba55ed50", "0xBA55ED50", "0x7f, 0x45, 0x4c, 0x46", "0x7f,0x45,0x4c,0x46", "0x7F, 0x45, 0x4C, 0x46",
	"0x7F,0x45,0x4C,0x46", "127, 69, 76, 70", "127,69,76,70", "0x50, 0xed, 0x55, 0xba", "0x50,0xed,0x55,0xba"}

// binaries looks for compiled kernels in the sources.
func (n *inspector) binaries() {
	const hint = "ship sources only: prebuilt kernels are forbidden"
	for _, s := range n.sol.Sources {
		for _, image := range images {
			at := strings.Index(s.Content, image)
			if at < 0 {
				continue
			}
			// A comparison with the four magic bytes is not an image.
			if end := at + len(image); !strings.HasSuffix(image, "ELF") || end < len(s.Content) && !strings.ContainsAny(
				s.Content[end:end+1], `"'`) {
				n.mark(Error, "shipped-binary", s, at, hint, "a compiled kernel")
			}
		}
		for at := 0; ; at++ {
			target := strings.Index(s.Content[at:], ".target sm_")
			if target < 0 {
				break
			}
			at += target
			begin := strings.LastIndex(s.Content[max(0, at-200):at], ".version ")
			if begin < 0 {
				continue
			}
			begin += max(0, at-200)
			head, _, ok := strings.Cut(s.Content[begin:min(len(s.Content), at+1000)], ".entry")
			if ok && !strings.Contains(head, ";") {
				n.mark(Error, "shipped-binary", s, begin, hint, "a compiled kernel in PTX")
				break
			}
		}
	}
}

// features are PTX instructions and qualifiers that ptxas 13.2 rejects for plain sm_100, with the arch that has them.
var features = []struct{ text, arch string }{
	{"wgmma.", "sm_90a"}, {"tcgen05.", "sm_100a"}, {"setmaxnreg.", "sm_90a, sm_100a"},
	{"tensormap.replace", "sm_90a, sm_100a"}, {"cvt.rs.", "sm_100a"}, {".e2m1x2", "sm_100a"}, {".e2m3x2", "sm_100a"},
	{".e3m2x2", "sm_100a"}, {".ue8m0x2", "sm_100a"}, {".block_scale", "sm_120a"}, {".cta_group::", "sm_100a"},
	{".tile::gather4", "sm_100a"}, {".tile::scatter4", "sm_100a"}, {".multicast::cluster::all", "sm_100a"},
	{"sync.aligned.m16n16", "sm_100a"}, {"sync.aligned.m8n16", "sm_100a"},
}

// Features returns the uses of PTX in C++ sources that sm_100 without the "a" rejects, once for each file and
// instruction. If the solution still compiles for sm_100, the contest compiles another branch.
func Features(sol *trace.Solution) []Finding {
	n := &inspector{sol: sol, alike: map[[2]string]int{}}
	for _, s := range n.cpp() {
		code := blank(s.Content)
		for _, f := range features {
			if at := strings.Index(code, f.text); at >= 0 {
				n.mark(Warning, "needs-a-arch", s, at, NeedsArch(f.arch),
					"sm_100 has no %s, so the other branch is compiled", strings.Trim(f.text, "."))
			}
		}
	}
	return limit(n.findings)
}

// NeedsArch returns the hint for instructions missing on plain sm_100.
func NeedsArch(arch string) string {
	return fmt.Sprintf("it needs %s, but the contest compiles for sm_100: make sure that the other branch is correct, "+
		"or use features of sm_100 such as mma.sync and cp.async.bulk", arch)
}

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

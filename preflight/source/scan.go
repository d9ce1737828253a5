package source

import (
	"fmt"
	"regexp"
	"strings"

	"fisub/internal/trace"
)

// maxAlike limits the findings of one kind in a file. The last one has the number of the others.
const maxAlike = 5

// limit cuts findings that repeat themselves.
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

// A comment of C++, or a string, which may look like it has one.
var comment = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?(?:\*/|\z)|"(?:\\.|[^"\\\n])*"?`)

// blank returns C++ with its comments overwritten with spaces.
func blank(text string) string {
	return comment.ReplaceAllStringFunc(text, func(s string) string {
		if s[0] == '"' {
			return s
		}
		b := []byte(s)
		for i, c := range b {
			if c != '\n' {
				b[i] = ' '
			}
		}
		return string(b)
	})
}

// binary matches the beginning of an ELF file or a fatbin as a string, in base64 or as numbers, and PTX.
var binary = regexp.MustCompile(`["'](?:\\x7[fF]|\\177|\x7f)(?:" ")?ELF[^"'\n]{4}|["']\s*(?:f0VMR|UO1Vu)[^"'\n]{8}|` +
	`\b0x[bB][aA]55[eE][dD]50|\b(?:0x7[fF]|127), *(?:0x45|69), *(?:0x4[cC]|76), *(?:0x46|70)\b|` +
	`\b0x50, *0x[eE][dD], *0x55, *0x[bB][aA]\b|` +
	`\.version\s+[0-9][^;]{0,200}\.target\s+sm_[0-9][^;]{0,1000}\.entry`)

// binaries looks for compiled kernels in the sources.
func (n *inspector) binaries() {
	for _, s := range n.sol.Sources {
		for _, at := range binary.FindAllStringIndex(s.Content, maxAlike) {
			what := "a compiled kernel"
			if s.Content[at[0]] == '.' {
				what = "a kernel in PTX, which is the output of a compiler"
			}
			n.mark(Error, "shipped-binary", s, at[0], "ship sources only: prebuilt kernels are forbidden", "%s", what)
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

// Features finds PTX in C++ sources that sm_100 without the "a" rejects, once for each file and instruction. If the
// solution compiles for sm_100 all the same, the contest compiles another branch.
func Features(sol *trace.Solution) []Finding {
	n := &inspector{sol: sol, alike: map[[2]string]int{}}
	for _, s := range n.cpp() {
		code := blank(s.Content)
		for _, f := range features {
			if at := strings.Index(code, f.text); at >= 0 {
				n.mark(Warning, "needs-a-arch", s, at, NeedsArch(f.arch),
					"sm_100 has no %s, so another branch is compiled for it", strings.Trim(f.text, "."))
			}
		}
	}
	return limit(n.findings)
}

// NeedsArch is the advice for instructions that plain sm_100 lacks.
func NeedsArch(arch string) string {
	return fmt.Sprintf("it needs %s, and the contest's builder compiles for sm_100: check that the other branch is "+
		"right, or use what sm_100 has, such as mma.sync and cp.async.bulk", arch)
}

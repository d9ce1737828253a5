// Package source reads the sources of a solution: exports, signatures and imports against the definition (Inspect), and
// what the contest forbids, or its builder and evaluator stumble over. C++ it reads as text, in bounded time; of Python
// it asks CPython, which its caller runs. It runs none of the sources, and reads no files.
package source

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	words "fisub/internal/plain"

	"fisub/internal/trace"
)

// A Severity says what a finding means for a submission.
type Severity string

const (
	Error   Severity = "error"   // the contest rejects it, or it does not build or run
	Warning Severity = "warning" // the contest silently changes it, or it is likely wrong
	Note    Severity = "note"    // worth knowing
)

// A Finding is something wrong with a submission. Line and Col count from 1, Col in characters; both are 0 for a
// finding about a whole file, and Path is "" for one about the whole submission.
type Finding struct {
	Code     string   `json:"code"` // stable name of the kind of finding, such as "parameter-count"
	Severity Severity `json:"severity"`
	Path     string   `json:"path"`
	Line     int      `json:"line"`
	Col      int      `json:"column"`
	Msg      string   `json:"message"`
	Hint     string   `json:"hint"` // advice, or ""
	Excerpt  string   `json:"-"`    // the line of source and, below it, a marker; or ""
}

func (f Finding) String() string {
	switch {
	case f.Path == "":
		return f.Msg
	case f.Line == 0:
		return f.Path + ": " + f.Msg
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.Path, f.Line, f.Col, f.Msg)
}

var (
	cppCompiled  = []string{".cpp", ".cc", ".cxx", ".c"}
	cudaCompiled = append([]string{".cu"}, cppCompiled...)
	cppScanned   = append([]string{".cuh", ".h", ".hpp", ".inl", ".inc"}, cudaCompiled...)
)

// Inspect reads the sources of sol and returns what would keep it from being built or called, in order of place. It
// reads them as the builder of the solution's language and binding would, but only their surface: exports, signatures,
// imports. def may be nil, and then parameters are not counted. Where python fails, a note says so; it is not called
// where there are no Python sources.
func Inspect(sol *trace.Solution, def *trace.Definition, python Python) []Finding {
	n := &inspector{sol: sol, def: def}
	n.entry, n.symbol, _ = strings.Cut(sol.Spec.EntryPoint, "::")
	if n.compiles() {
		n.compiled()
	}
	n.python(python)
	slices.SortStableFunc(n.findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), a.Line-b.Line, a.Col-b.Col)
	})
	return limit(n.findings)
}

type inspector struct {
	sol           *trace.Solution
	def           *trace.Definition
	entry, symbol string
	nvrtc         bool // the sources compile at run time
	asm           bool // the sources have inline assembly
	findings      []Finding
}

// add notes a finding at the byte pos of a source, or at no place in it where pos is negative.
func (n *inspector) add(s Severity, code, file, text string, pos int, hint, format string, args ...any) {
	var at pyPlace
	if pos >= 0 {
		begin := strings.LastIndexByte(text[:pos], '\n') + 1
		at.Line = 1 + strings.Count(text[:begin], "\n")
		at.Column = 1 + utf8.RuneCountInString(text[begin:pos])
	}
	n.at(s, code, file, at, hint, format, args...)
}

func (n *inspector) at(s Severity, code, file string, at pyPlace, hint, format string, args ...any) {
	n.findings = append(n.findings, Finding{Code: code, Path: file, Line: at.Line, Col: at.Column,
		Msg: fmt.Sprintf(format, args...), Hint: hint, Severity: s})
}

// expected is the number of arguments of a call, and how it comes about.
func (n *inspector) expected() (count int, sum string) {
	in, out := n.def.Inputs.Len(), n.def.Outputs.Len()
	if n.sol.Spec.DestinationPassingStyle {
		return in + out, fmt.Sprintf("%s + %s", plural(in, "input"), plural(out, "output"))
	}
	return in, plural(in, "input") + ", outputs returned"
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// arityHint is the advice for a function of got parameters.
func (n *inspector) arityHint(got int) string {
	in, out := n.def.Inputs.Len(), n.def.Outputs.Len()
	dps := n.sol.Spec.DestinationPassingStyle
	switch {
	case dps && got == in && out > 0:
		return "take the outputs as the last parameters, or set destination_passing_style = false"
	case !dps && got == in+out && out > 0:
		return "return the outputs, or set destination_passing_style = true"
	}
	names := slices.Clone(n.def.Inputs.Keys())
	if dps {
		names = append(names, n.def.Outputs.Keys()...)
	}
	return "the arguments are " + strings.Join(names, ", ")
}

// compiles tells whether the language is one of C++.
func (n *inspector) compiles() bool {
	return n.sol.Spec.Language == trace.CUDA || n.sol.Spec.Language == trace.CPP
}

// compiled inspects cuda and cpp.
func (n *inspector) compiled() {
	lang, torch := n.sol.Spec.Language, n.sol.Spec.Binding == "torch"
	suffixes := cudaCompiled
	if lang == trace.CPP {
		suffixes = cppCompiled
	}
	if ext := suffix(path.Base(n.entry)); !slices.Contains(suffixes, ext) {
		hint := ""
		switch {
		case slices.Contains(suffixes, strings.ToLower(ext)):
			hint = "builders match suffixes case-sensitively: rename it to end in " + strings.ToLower(ext)
		case ext == ".py":
			hint = "name the source that exports the function, such as kernel" + suffixes[0]
		case ext == ".cu":
			hint = `set language = "cuda"`
		}
		n.add(Error, "entry-suffix", n.entry, "", -1, hint, "entry file is not one that language %s compiles (%s)", lang,
			strings.Join(suffixes, " "))
	}

	u := &unit{macros: map[string]macro{}, budget: 1 << 20}
	var files []*file
	for _, s := range n.sol.Sources {
		if slices.Contains(cppScanned, suffix(path.Base(s.Path))) {
			files = append(files, &file{path: s.Path, text: s.Content})
			exportMacros(s.Content, u.macros)
			n.asm = n.asm || strings.Contains(s.Content, "asm")
			n.nvrtc = n.nvrtc || strings.Contains(s.Content, "nvrtcCompileProgram")
		}
	}
	var tokens []token
	for _, f := range files {
		tokens = lexCPP(f.text, tokens[:0])
		s := scanner{unit: u, file: f}
		s.scan(tokens)
		t := readText(f.text)
		n.conduct(f, t, tokens)
		n.features(f, t)
		n.includes(f, t)
	}
	if torch {
		n.methods(u)
	} else {
		n.exports(u)
	}
	if out := n.outputs(); out > 1 && !torch && !n.sol.Spec.DestinationPassingStyle {
		n.add(Error, "tuple-return", n.entry, "", -1, `set destination_passing_style = true`,
			"a tvm-ffi function cannot return %d outputs: the harness takes a tuple, not an array", out)
	}
}

func (n *inspector) outputs() int {
	if n.def == nil {
		return 0
	}
	return n.def.Outputs.Len()
}

// exports inspects the tvm-ffi binding.
func (n *inspector) exports(u *unit) {
	var mine []export
	var others []string
	for _, e := range u.exports {
		if e.symbol == n.symbol {
			mine = append(mine, e)
		} else {
			others = append(others, e.symbol)
		}
	}
	for _, f := range u.functions {
		name, manual := strings.CutPrefix(f.name(), exportPrefix)
		switch {
		case !manual || !f.def:
		case name != n.symbol:
			others = append(others, name)
		case !f.c:
			n.add(Error, "export-linkage", f.file.path, f.file.text, f.pos, `declare it extern "C"`, `%s is not extern "C"`,
				f.name())
			return
		default:
			return
		}
	}
	if len(mine) > 0 {
		n.targets(u, mine)
		return
	}
	hint := fmt.Sprintf("add %s(%s, <function>);", exportMacro, n.symbol)
	if u.pybind {
		hint = `it is a PYBIND11_MODULE: set binding = "torch", or ` + hint
	} else if near := words.Nearest(n.symbol, others); len(near) > 0 {
		hint = fmt.Sprintf("did you mean %q?", n.entry+"::"+near[0])
	} else if len(others) > 0 {
		hint = "exported: " + strings.Join(others, ", ")
	}
	n.add(Error, "no-export", n.entry, "", -1, hint, "no source exports %q with %s", n.symbol, exportMacro)
}

// methods inspects the torch binding.
func (n *inspector) methods(u *unit) {
	var mine []export
	var others []string
	for _, e := range u.methods {
		if e.symbol == n.symbol {
			mine = append(mine, e)
		} else {
			others = append(others, e.symbol)
		}
	}
	switch {
	case len(mine) > 0:
		n.targets(u, mine)
	case !u.pybind:
		hint := fmt.Sprintf("add %s(TORCH_EXTENSION_NAME, m) { m.def(%q, &<function>); }", pybindMacro, n.symbol)
		if len(u.exports) > 0 {
			hint = `its exports are tvm-ffi's: set binding = "tvm-ffi"`
		}
		n.add(Error, "no-module", n.entry, "", -1, hint, "no source has a %s", pybindMacro)
	default:
		hint := ""
		if near := words.Nearest(n.symbol, others); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %q?", n.entry+"::"+near[0])
		} else if len(others) > 0 {
			hint = "defined: " + strings.Join(others, ", ")
		}
		n.add(Error, "no-method", n.entry, "", -1, hint, "no m.def(%q, ...) in the %s", n.symbol, pybindMacro)
	}
}

// targets counts the parameters of the exported functions. One that fits is enough: exports may be alternatives under
// #if.
func (n *inspector) targets(u *unit, exports []export) {
	var first *Finding
	for _, e := range exports[:min(len(exports), maxSame)] {
		f := n.target(u, e)
		if f == nil {
			return
		}
		if first == nil || first.Severity == Note {
			first = f
		}
	}
	n.findings = append(n.findings, *first)
}

func (n *inspector) target(u *unit, e export) *Finding {
	one := inspector{sol: n.sol, def: n.def}
	fs, name := u.resolve(e)
	if len(fs) == 0 {
		if name == "" || len(u.macros) > 0 {
			return nil
		}
		one.add(Note, "unknown-function", e.file.path, e.file.text, e.pos, "define it in a file that is packed",
			"function %s is not found in the sources: its parameters are not counted", name)
		return &one.findings[0]
	}
	for _, f := range fs {
		if f.global {
			one.add(Error, "global-export", f.file.path, f.file.text, f.pos, "export the host function that launches it",
				"%s is a __global__ function", f.name())
			continue
		}
		if n.def == nil {
			return nil
		}
		got := f.params
		want, sum := n.expected()
		if !f.any && got == want {
			return n.types(f)
		}
		if f.any || len(e.rest) > 0 && got > want && slices.ContainsFunc(e.rest, func(t token) bool { return t.is("=") }) {
			return nil
		}
		one.add(Error, "parameter-count", f.file.path, f.file.text, f.pos, n.arityHint(got),
			"expected %s (%s), but %s has %d", plural(want, "parameter"), sum, f.name(), got)
	}
	return &one.findings[0]
}

// suffix is the ending of a file name, with its dot. A name's first or last character is not the dot of one.
func suffix(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 && i < len(name)-1 {
		return name[i:]
	}
	return ""
}

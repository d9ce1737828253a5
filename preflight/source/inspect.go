// Package source reads the sources of a solution, as text: exports, signatures and imports against the definition
// (Inspect), and what the contest forbids, or its builder and evaluator stumble over. It compiles and runs nothing,
// reads no files, and takes hostile sources in bounded time.
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
// imports. def may be nil, and then parameters are not counted.
func Inspect(sol *trace.Solution, def *trace.Definition) []Finding {
	n := &inspector{sol: sol, def: def}
	n.entry, n.symbol, _ = strings.Cut(sol.Spec.EntryPoint, "::")
	switch sol.Spec.Language {
	case trace.CUDA, trace.CPP:
		n.compiled()
		for _, s := range sol.Sources {
			if suffix(path.Base(s.Path)) == ".py" {
				n.tvmModule(s, lexPython(s.Content), Warning)
			}
		}
	default:
		n.python()
	}
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
	f := Finding{Code: code, Path: file, Msg: fmt.Sprintf(format, args...), Hint: hint, Severity: s}
	if pos >= 0 {
		begin := strings.LastIndexByte(text[:pos], '\n') + 1
		f.Line = 1 + strings.Count(text[:begin], "\n")
		f.Col = 1 + utf8.RuneCountInString(text[begin:pos])
	}
	n.findings = append(n.findings, f)
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

// python inspects python, triton and tilelang.
func (n *inspector) python() {
	if ext := suffix(path.Base(n.entry)); ext != ".py" {
		hint := ""
		if slices.Contains(cudaCompiled, strings.ToLower(ext)) {
			hint = `set language = "cuda"`
		}
		n.add(Error, "entry-suffix", n.entry, "", -1, hint, "entry file is not a Python file")
		return
	}
	siblings := map[string]bool{}
	for _, s := range n.sol.Sources {
		if top, _, sub := strings.Cut(strings.TrimPrefix(s.Path, "./"), "/"); sub {
			siblings[top] = true
		} else if stem, ok := strings.CutSuffix(top, ".py"); ok {
			siblings[stem] = true
		}
	}
	for _, installed := range []string{"torch", "triton", "tilelang", "numpy", "flashinfer"} {
		delete(siblings, installed)
	}
	for _, s := range n.sol.Sources {
		if suffix(path.Base(s.Path)) != ".py" {
			continue
		}
		lines := lexPython(s.Content)
		m := parsePython(lines)
		n.pyConduct(s, lines, m)
		n.imports(s, m, siblings)
		if s.Path == n.entry {
			n.pyEntry(s, m)
		}
	}
}

// imports looks for sibling modules imported by an absolute name. One that is also imported relatively is a fallback.
func (n *inspector) imports(s trace.SourceFile, m *pyModule, siblings map[string]bool) {
	relative := map[string]bool{}
	for _, imp := range m.imports {
		if top, _, _ := strings.Cut(imp.module, "."); imp.relative {
			relative[top] = true
		}
	}
	for _, imp := range m.imports {
		top, _, _ := strings.Cut(imp.module, ".")
		if imp.relative || relative[top] || !siblings[top] {
			continue
		}
		n.add(Error, "absolute-import", s.Path, s.Content, imp.pos,
			fmt.Sprintf("write from . import %s, or from .%s import ...", top, top),
			"absolute import of %s, which is a file of this solution", imp.module)
	}
}

func (n *inspector) pyEntry(s trace.SourceFile, m *pyModule) {
	fs := m.functions[n.symbol]
	if pos, class := m.classes[n.symbol]; class && len(fs) == 0 {
		n.add(Error, "class-entry", s.Path, s.Content, pos, "name a function, which may keep an instance",
			"entry %s is a class: the call would make an instance and return it", n.symbol)
		return
	}
	if len(fs) == 0 {
		if m.bound[n.symbol] || m.bound["*"] {
			return
		}
		names := make([]string, 0, len(m.functions))
		for name := range m.functions {
			names = append(names, name)
		}
		slices.Sort(names)
		hint := fmt.Sprintf("define it: def %s(...)", n.symbol)
		if near := words.Nearest(n.symbol, names); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %q?", n.entry+"::"+near[0])
		}
		n.add(Error, "no-function", s.Path, "", -1, hint, "no top-level function %s", n.symbol)
		return
	}
	if fs[0].jit() && n.sol.Spec.Language == trace.Python {
		n.add(Note, "jit-language", s.Path, s.Content, fs[0].pos, `set language = "triton"`,
			"language is python, but %s is a Triton function", n.symbol)
	}
	var first *Finding
	for _, f := range slices.Backward(fs[max(0, len(fs)-maxSame):]) {
		finding := n.pyFunction(s, m, f)
		if finding == nil {
			return
		}
		if first == nil {
			first = finding
		}
	}
	n.findings = append(n.findings, *first)
}

// jit tells whether f is a Triton kernel, which cannot be called without a grid.
func (f pyFunction) jit() bool {
	return slices.ContainsFunc(f.decorators, func(name []string) bool {
		switch strings.Join(name, ".") {
		case "triton.jit", "triton.autotune", "triton.heuristics", "jit", "autotune":
			return true
		}
		return false
	})
}

// pyFunction returns what is wrong with the call of f, or nil.
func (n *inspector) pyFunction(s trace.SourceFile, m *pyModule, f pyFunction) *Finding {
	one := inspector{sol: n.sol, def: n.def}
	found := func(code, hint, format string, args ...any) *Finding {
		one.add(Error, code, s.Path, s.Content, f.pos, hint, format, args...)
		return &one.findings[0]
	}
	if f.jit() {
		return found("jit-entry", "name a Python function that launches it",
			"entry %s is a @triton.jit function, which cannot be called without a grid", n.symbol)
	}
	if f.async {
		return found("async-entry", "write def, without async",
			"entry %s is async: a call makes a coroutine and runs nothing", n.symbol)
	}
	for _, name := range f.decorators {
		switch strings.Join(name, ".") {
		case "functools.lru_cache", "functools.cache", "lru_cache", "cache":
			return found("cached-call", "compute in every call: cached results are forbidden",
				"%s keeps its results from call to call", n.symbol)
		case "torch.no_grad", "torch.inference_mode":
		default:
			return nil // it may change the signature
		}
	}
	if n.def == nil {
		return nil
	}
	want, sum := n.expected()
	least, most, keyword := positional(f.params)
	takes := fmt.Sprint(least)
	if most > least {
		takes = fmt.Sprintf("%d to %d", least, most)
	} else if most < 0 {
		takes = fmt.Sprintf("%d or more", least)
	}
	switch {
	case want < least || most >= 0 && want > most:
		return found("parameter-count", n.arityHint(least), "expected %s (%s), but %s takes %s",
			plural(want, "positional parameter"), sum, n.symbol, takes)
	case keyword != "":
		return found("keyword-only", "give it a default",
			"%s has the keyword-only parameter %s without a default, which a call never gives", n.symbol, keyword)
	}
	if n.sol.Spec.DestinationPassingStyle || m.future || len(f.returns) == 0 {
		return nil
	}
	out := n.def.Outputs.Len()
	switch returned, ok := returns(f.returns); {
	case ok && returned != out:
		return found("return-annotation", "mend the annotation, which the builder reads, or leave it out",
			"%s is annotated to return %s, but the definition has %s", n.symbol, plural(returned, "value"),
			plural(out, "output"))
	}
	return nil
}

// returns counts the values of a return annotation; ok is false where it leaves the number open.
func returns(ts []token) (count int, ok bool) {
	if slices.ContainsFunc(ts, func(t token) bool { return t.kind == str || t.is("|") }) {
		return 0, false
	}
	if len(ts) == 1 && ts[0].is("None") {
		return 0, true
	}
	for i, t := range ts {
		if t.is("[") {
			if name := ts[max(0, i-1)].text; name != "tuple" && name != "Tuple" {
				return 0, false
			}
			parts := pySplit(inner(ts, i, match(ts, i)))
			open := slices.ContainsFunc(parts, func(p []token) bool { return len(p) > 0 && p[0].is(".") })
			return len(parts), !open
		}
	}
	last := ts[len(ts)-1].text
	return 1, last == "Tensor"
}

// suffix is the ending of a file name, with its dot. A name's first or last character is not the dot of one.
func suffix(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 && i < len(name)-1 {
		return name[i:]
	}
	return ""
}

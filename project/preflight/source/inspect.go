// Package source checks the sources of a solution against the definition and the contest's rules: exports, signatures,
// imports, compiled kernels. It reads C++ as text, in bounded time, and parses Python with the caller's CPython. It
// runs no source and reads no file.
package source

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// A Severity is the effect of a finding on a submission.
type Severity string

const (
	Error   Severity = "error"   // the contest rejects it, or it does not build or run
	Warning Severity = "warning" // the contest silently changes it, or it is likely wrong
	Note    Severity = "note"    // worth knowing
)

// A Finding is a problem or a remark about a submission. Line and Col count from 1, Col in characters; both are 0 for a
// finding about a whole file. Path is "" for one about the whole submission.
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

// Text returns the place, the fact, the code and the excerpt, for a terminal.
func (f Finding) Text() string {
	f.Path = plain.Relative(f.Path)
	text := plain.Line(fmt.Sprintf("%s [%s]", f, f.Code)) // authors choose file names
	if f.Excerpt != "" {
		text += "\n" + f.Excerpt
	}
	return text
}

var (
	cppCompiled  = []string{".cpp", ".cc", ".cxx", ".c"}
	cudaCompiled = append([]string{".cu"}, cppCompiled...)
	cppScanned   = append([]string{".cuh", ".h", ".hpp", ".inl", ".inc"}, cudaCompiled...)
)

// Inspect returns the faults of sol that prevent building or calling it, ordered by place. It reads the sources as the
// builder of the solution's language and binding would, but only exports, signatures and imports. def may be nil; then
// parameters are not counted. If python fails, a note says so. Without Python sources, python is not called.
func Inspect(sol *trace.Solution, def *trace.Definition, python Python) []Finding {
	n := &inspector{sol: sol, def: def, alike: map[[2]string]int{}}
	n.entry, n.symbol, _ = strings.Cut(sol.Spec.EntryPoint, "::")
	if sol.Spec.Language == trace.CUDA || sol.Spec.Language == trace.CPP {
		n.compiled()
	} else {
		n.python(python)
	}
	n.binaries()
	slices.SortStableFunc(n.findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), a.Line-b.Line, a.Col-b.Col)
	})
	return limit(n.findings)
}

type inspector struct {
	sol           *trace.Solution
	def           *trace.Definition
	entry, symbol string
	findings      []Finding
	alike         map[[2]string]int // number of mark's findings by file and code
}

// at adds a finding at a place, or about a whole file.
func (n *inspector) at(s Severity, code, file string, at pyPlace, hint, format string, args ...any) {
	n.findings = append(n.findings, Finding{Code: code, Path: file, Line: at.Line, Col: at.Column,
		Msg: fmt.Sprintf(format, args...), Hint: hint, Severity: s})
}

func (n *inspector) add(s Severity, code, file, hint, format string, args ...any) {
	n.at(s, code, file, pyPlace{}, hint, format, args...)
}

// mark adds a finding at the byte pos of a source, with the line as excerpt.
func (n *inspector) mark(s Severity, code string, file trace.SourceFile, pos int, hint, format string, args ...any) {
	n.add(s, code, file.Path, hint, format, args...)
	f, key := &n.findings[len(n.findings)-1], [2]string{file.Path, code}
	if n.alike[key]++; n.alike[key] > maxAlike { // limit only counts these
		f.Line = math.MaxInt32
		return
	}
	f.Line, f.Col, f.Excerpt = plain.Mark(file.Content, pos, pos+1)
}

// expected returns the number of arguments of a call, and a text that explains it.
func (n *inspector) expected() (count int, sum string) {
	in, out := n.def.Inputs.Len(), n.outputs()
	if n.sol.Spec.DestinationPassingStyle {
		return in + out, fmt.Sprintf("%s + %s", plain.Count(in, "input"), plain.Count(out, "output"))
	}
	return in, plain.Count(in, "input") + ", outputs returned"
}

// arityHint returns the hint for a function with got parameters.
func (n *inspector) arityHint(got int) string {
	in, out := n.def.Inputs.Len(), n.outputs()
	dps := n.sol.Spec.DestinationPassingStyle
	switch {
	case dps && got == in && out > 0:
		return "take the outputs as the last parameters, or set destination_passing_style = false"
	case !dps && got == in+out && out > 0 && n.def.Python == nil:
		return "return the outputs, or set destination_passing_style = true"
	}
	names := n.def.Inputs.Keys()
	if n.def.Python != nil {
		return fmt.Sprintf("def %s(data): the one argument is what the task's function for inputs returns", n.symbol)
	}
	if dps {
		names = n.def.Arguments()
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
	if ext := plain.Suffix(path.Base(n.entry)); !slices.Contains(suffixes, ext) {
		hint := ""
		switch {
		case slices.Contains(suffixes, strings.ToLower(ext)):
			hint = "builders match suffixes case-sensitively: rename it to end in " + strings.ToLower(ext)
		case ext == ".py":
			hint = "set it to the source that exports the function, such as kernel" + suffixes[0]
		case ext == ".cu":
			hint = `set language = "cuda"`
		}
		n.add(Error, "entry-suffix", n.entry, hint, "entry file: language %s compiles only %s", lang,
			strings.Join(suffixes, " "))
	}

	contains := map[string]bool{} // whether any source contains the text
	texts := []string{pybindMacro, "PyInit_", exportMacro, exportPrefix, `"` + n.symbol + `"`}
	for _, s := range n.cpp() {
		for _, text := range texts {
			contains[text] = contains[text] || strings.Contains(s.Content, text)
		}
	}
	switch {
	case torch && !contains[pybindMacro] && !contains["PyInit_"]:
		hint := fmt.Sprintf("add %s(TORCH_EXTENSION_NAME, m) { m.def(%q, &<function>); }", pybindMacro, n.symbol)
		if contains[exportMacro] {
			hint = `the exports are for tvm-ffi: set binding = "tvm-ffi"`
		}
		n.add(Error, "no-module", n.entry, hint, "no source has a %s", pybindMacro)
	case torch && !contains[texts[4]]:
		n.add(Error, "no-method", n.entry, "add m.def("+texts[4]+", &<function>); to the "+pybindMacro,
			"no m.def(%q, ...) in the %s", n.symbol, pybindMacro)
	case !torch && !contains[exportMacro] && !contains[exportPrefix]:
		hint := ""
		if contains[pybindMacro] {
			hint = `for PYBIND11_MODULE, set binding = "torch"`
		}
		n.findings = append(n.findings, NoExport(n.sol, nil, hint))
	}
	if out := n.outputs(); out > 1 && !torch && !n.sol.Spec.DestinationPassingStyle {
		n.add(Error, "tuple-return", n.entry, `set destination_passing_style = true`,
			"a tvm-ffi function cannot return %d outputs: the harness takes a tuple, not an array", out)
	}
}

func (n *inspector) cpp() (files []trace.SourceFile) {
	for _, s := range n.sol.Sources {
		if slices.Contains(cppScanned, plain.Suffix(path.Base(s.Path))) {
			files = append(files, s)
		}
	}
	return files
}

func (n *inspector) outputs() int {
	if n.def == nil {
		return 0
	}
	own := n.def.Returned()
	return own.Len()
}

// exportMacro exports a function under the C symbol __tvm_ffi_<first argument> (tvm/ffi/function.h).
const (
	exportMacro  = "TVM_FFI_DLL_EXPORT_TYPED_FUNC"
	exportPrefix = "__tvm_ffi_"
	pybindMacro  = "PYBIND11_MODULE"
)

// NoExport returns the finding for a compiled solution without its entry among its exports. hint "" selects a default.
func NoExport(sol *trace.Solution, exports []string, hint string) Finding {
	entry, symbol := sol.Entry()
	f := Finding{Code: "no-export", Severity: Error, Path: entry, Hint: hint,
		Msg: fmt.Sprintf("no source exports %q with %s", symbol, exportMacro)}
	if near := plain.Nearest(symbol, exports); len(near) > 0 {
		f.Hint = fmt.Sprintf("did you mean %q?", entry+"::"+near[0])
	} else if len(exports) > 0 {
		f.Hint = "exported: " + strings.Join(exports, ", ")
	} else if hint == "" {
		f.Hint = fmt.Sprintf("add %s(%s, <function>);", exportMacro, symbol)
	}
	return f
}

// Call compares the parameters of an exported function with the harness's arguments. It returns nil if they fit, else a
// finding without a place. parameters has one letter each: "i" an integer, "f" a floating-point number, "p" a raw
// pointer, "t" a tensor, "?" another type.
func Call(sol *trace.Solution, def *trace.Definition, parameters string) *Finding {
	n := &inspector{sol: sol, def: def}
	_, symbol := sol.Entry()
	if want, sum := n.expected(); want != len(parameters) {
		n.add(Error, "parameter-count", "", n.arityHint(len(parameters)), "expected %s (%s), but %s has %d",
			plain.Count(want, "parameter"), sum, symbol, len(parameters))
		return &n.findings[0]
	}
	kinds := map[byte]string{'i': "an integer", 'f': "a floating-point number", 'p': "a pointer", 't': "a tensor"}
	i := 0
	for _, specs := range []trace.Map[trace.TensorSpec]{def.Inputs, def.Returned()} {
		for name, spec := range specs.All() {
			if i == len(parameters) {
				break
			}
			kind := parameters[i]
			want, hint := "a tensor", "take a tvm::ffi::TensorView"
			fits := kind == 't' || kind == '?'
			if spec.Scalar {
				want, hint = "a number of dtype "+spec.DType.String(), "take an int64_t or a double"
				fits = kind == 'f' || kind == '?' || kind == 'i' && !spec.DType.IsFloat()
			}
			if i++; !fits {
				n.add(Error, "parameter-type", "", hint, "parameter %d of %s is %s, but %s is %s", i, symbol, kinds[kind],
					name, want)
				return &n.findings[0]
			}
		}
	}
	return nil
}

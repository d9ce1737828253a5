package source

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// forbidden are libraries of finished kernels, by their import names.
var forbidden = strings.Fields(
	"flashinfer deep_gemm sgl_kernel sglang vllm flash_attn flash_attn_interface flash_mla fla xformers " +
		"transformer_engine tensorrt_llm tensorrt aiter flashmla mamba_ssm causal_conv1d liger_kernel sageattention " +
		"lmdeploy vllm_flash_attn deep_ep")

// networked are modules that need a network.
var networked = strings.Fields(
	"urllib urllib3 requests httpx aiohttp socket http ftplib huggingface_hub wget websocket paramiko")

// absent are modules missing in the evaluation's image.
var absent = strings.Fields("cupy jax tensorflow numba pycuda paddle mlx mxnet")

const forbiddenHint = "write your own kernel: kernel libraries are forbidden; cuBLAS is allowed, also through torch"

func (n *inspector) python(run Python) {
	if ext := plain.Suffix(path.Base(n.entry)); ext != ".py" {
		hint := ""
		if slices.Contains(cudaCompiled, strings.ToLower(ext)) {
			hint = `set language = "cuda"`
		}
		n.add(Error, "entry-suffix", n.entry, hint, "entry file is not a Python file")
		return
	}
	f, err := solutionFacts(run, n.sol, n.entry, n.symbol)
	if err != nil {
		n.add(Note, "python-not-read", "", "install Python 3.8 or later, or set FISUB_PYTHON to one",
			"Python sources were not checked: %v", err)
		return
	}
	for _, file := range f.Files {
		if file.Error != nil {
			n.syntax(f.Version, file)
		}
		for _, fact := range file.Facts {
			n.pyFact(file.Path, fact)
		}
	}
	if f.Entry != nil {
		n.pyEntry(f.Entry)
	}
}

// syntax adds a finding for a syntax error. It is an error only if the file is certainly run and the contest's Python
// rejects it.
func (n *inspector) syntax(version string, file pyFile) {
	found := Finding{Code: "python-syntax", Severity: Error, Path: file.Path, Line: file.Error.Line,
		Col: file.Error.Column, Msg: "not valid Python: " + file.Error.Text}
	switch {
	case file.Error.Doubtful:
		found.Severity, found.Msg = Warning, fmt.Sprintf("not valid Python %s: %s", version, file.Error.Text)
		found.Hint = "make sure that Python 3.12, which the contest uses, accepts it"
	case !file.Reached:
		found.Severity, found.Hint = Warning, "delete the file if nothing imports it"
	}
	n.findings = append(n.findings, found)
}

// pyFact checks an import or a use of torch.ops. In code that the entry does not reach, an error becomes a warning, and
// a warning a note.
func (n *inspector) pyFact(file string, f pyFact) {
	add := func(severity Severity, code, hint, format string, args ...any) {
		switch {
		case f.Reached:
		case severity == Error:
			severity = Warning
		default:
			severity = Note
		}
		n.at(severity, code, file, f.pyPlace, hint, format, args...)
	}
	if n.def != nil && n.def.Python != nil {
		return // a task's board has other rules for libraries
	}
	top, rest, _ := strings.Cut(f.Name, ".")
	switch {
	case f.Kind == "op":
		if slices.Contains(forbidden, f.Name) {
			add(Error, "forbidden-library", forbiddenHint, "%s is used", f.Name)
		}
	case f.Level > 0 || f.Own && f.Helped:
	case f.Own:
		add(Error, "absolute-import", fmt.Sprintf("write from . import %s, or from .%s import ...", top, top),
			"absolute import of %s, a file of this solution", f.Name)
	case slices.Contains(forbidden, top) && f.Called:
		n.at(Error, "forbidden-library", file, f.pyPlace, forbiddenHint, "%s is used", top)
	case slices.Contains(forbidden, top) && !f.About:
		n.at(Warning, "forbidden-library", file, f.pyPlace,
			"remove the import: without the package the file does not load",
			"%s is imported; calls are forbidden, though the entry does not seem to reach any", top)
	case slices.Contains(networked, top):
		add(Warning, "network", "the evaluation has no network", "%s is imported", top)
	case slices.Contains(absent, top):
		add(Warning, "absent-module",
			"dependencies are not installed: the evaluation has torch, triton, numpy and CUDA's libraries",
			"%s is imported, but missing in the evaluation", top)
	case top == "tvm" && (rest == "ffi" || strings.HasPrefix(rest, "ffi.") || slices.Contains(f.Names, "ffi")):
		severity := Error
		if f.Guarded {
			severity = Warning
		}
		add(severity, "tvm-ffi-module", "write tvm_ffi", "no module tvm.ffi")
	}
}

// pyEntry looks for the entry in its file.
func (n *inspector) pyEntry(e *pyEntry) {
	if n.def != nil && n.def.Python != nil && n.def.Python.Call == "model" {
		if e.Class == nil && !e.Bound {
			n.add(Error, "no-class", n.entry, "define it: class "+n.symbol+"(nn.Module)", "no top-level class %s", n.symbol)
		}
		return
	}
	if e.Class != nil && len(e.Defs) == 0 {
		n.at(Error, "class-entry", n.entry, *e.Class, "use a function; it may keep an instance",
			"entry %s is a class: a call would create and return an instance", n.symbol)
		return
	}
	if len(e.Defs) == 0 {
		if e.Bound {
			return
		}
		hint := fmt.Sprintf("define it: def %s(...)", n.symbol)
		slices.Sort(e.Functions)
		if near := plain.Nearest(n.symbol, e.Functions); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %q?", n.entry+"::"+near[0])
		}
		n.add(Error, "no-function", n.entry, hint, "no top-level function %s", n.symbol)
		return
	}
	var first *Finding
	for _, f := range slices.Backward(e.Defs[max(0, len(e.Defs)-16):]) {
		found := n.pyFunction(f)
		if found == nil {
			return
		}
		if first == nil {
			first = found
		}
	}
	n.findings = append(n.findings, *first)
}

// jit reports whether f is a Triton kernel, which cannot be called without a grid.
func (f pyFunction) jit() bool {
	return slices.ContainsFunc(f.Decorators, func(name string) bool {
		return slices.Contains([]string{"triton.jit", "triton.autotune", "triton.heuristics", "jit", "autotune"}, name)
	})
}

// pyFunction returns a finding about the call of f, or nil.
func (n *inspector) pyFunction(f pyFunction) *Finding {
	one := inspector{sol: n.sol, def: n.def}
	found := func(code, hint, format string, args ...any) *Finding {
		one.at(Error, code, n.entry, f.pyPlace, hint, format, args...)
		return &one.findings[0]
	}
	if f.jit() {
		return found("jit-entry", "use a Python function that launches it",
			"entry %s is a @triton.jit function, which cannot be called without a grid", n.symbol)
	}
	if f.IsAsync {
		return found("async-entry", "write def, without async",
			"entry %s is async: a call creates a coroutine and runs nothing", n.symbol)
	}
	for _, name := range f.Decorators {
		switch name {
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
	takes := fmt.Sprint(f.Least)
	if f.Most > f.Least {
		takes = fmt.Sprintf("%d to %d", f.Least, f.Most)
	} else if f.Most < 0 {
		takes = fmt.Sprintf("%d or more", f.Least)
	}
	switch {
	case want < f.Least || f.Most >= 0 && want > f.Most:
		return found("parameter-count", n.arityHint(f.Least), "expected %s (%s), but %s takes %s",
			plain.Count(want, "positional parameter"), sum, n.symbol, takes)
	case f.Keyword != "":
		return found("keyword-only", "give it a default",
			"%s has the keyword-only parameter %s without a default, but calls pass no keywords", n.symbol, f.Keyword)
	}
	if n.sol.Spec.DestinationPassingStyle || f.Returns == "" || n.def.Python != nil {
		return nil
	}
	out := n.outputs()
	switch {
	case f.Returns == "other" && out != 1:
		return found("return-annotation", "use tuple[...] with one type for each output, without quotes and without from "+
			"__future__ import annotations, or remove it",
			"the return annotation of %s means one value to the builder, but the definition has %s", n.symbol, plain.Count(out,
				"output"))
	case f.Returns != "other" && f.Values != out:
		return found("return-annotation", "fix the annotation, which the builder reads, or remove it",
			"%s is annotated to return %s, but the definition has %s", n.symbol, plain.Count(f.Values, "value"),
			plain.Count(out, "output"))
	}
	return nil
}

// A Python runs a script in CPython with only its standard library, and returns its output. Its error is a short
// reason.
type Python func(script string, stdin []byte) (stdout []byte, err error)

//go:embed pyfacts.py
var pyFacts string

// A pyPlace is a place in a source; Line is 0 for the whole source.
type pyPlace struct{ Line, Column int }

// A pyFault is an error reported by CPython. It is doubtful if a later CPython may accept the code.
type pyFault struct {
	pyPlace
	Text     string
	Doubtful bool
}

// facts are the output of pyfacts.py for a solution or a definition.
type facts struct {
	Version string // of CPython, such as "3.12"
	Files   []pyFile
	Entry   *pyEntry // nil if its file cannot be read

	Reference   *pyFault
	Constraints []*pyFault
}

type pyFile struct {
	Path    string
	Reached bool     // the entry imports it
	Error   *pyFault // if set, Facts is empty
	Facts   []pyFact
}

// A pyFact is an import, or a use of torch.ops.Name.
type pyFact struct {
	pyPlace
	Kind, Name string // Kind is "import" or "op"
	Reached    bool   // the entry may run it

	// Of an import of the module Name:
	Names   []string // imported names
	Level   int      // number of leading dots
	Own     bool     // an absolute import of a file of the solution
	Helped  bool     // guarded, also imported relatively, or the search path changes
	Guarded bool     // inside a try statement
	Called  bool     // code that the entry reaches calls into it
	About   bool     // only its path or version is read
}

// A pyEntry holds the bindings of the entry's name in the entry file.
type pyEntry struct {
	Defs      []pyFunction
	Class     *pyPlace
	Bound     bool     // by any other statement
	Functions []string // names of the top-level functions of the file
}

// A pyFunction takes Least to Most positional arguments; Most is -1 for any number. Keyword is a keyword-only parameter
// without default.
type pyFunction struct {
	pyPlace
	Least, Most int
	Keyword     string
	IsAsync     bool `json:"is_async"`
	Decorators  []string
	Returns     string // "tuple", "none", "other", or "" if the annotation leaves it open
	Values      int    // number of values of a tuple
}

func ask(python Python, request any) (*facts, error) {
	in, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	out, err := python(pyFacts, in)
	if err != nil {
		return nil, err
	}
	var f facts
	if err := json.Unmarshal(out, &f); err != nil {
		return nil, fmt.Errorf("invalid JSON from python: %v", err)
	}
	return &f, nil
}

// solutionFacts returns the facts of the Python sources of a solution with that entry; the entry may be "".
func solutionFacts(python Python, sol *trace.Solution, entry, symbol string) (*facts, error) {
	request := struct {
		Sources []trace.SourceFile `json:"sources"`
		Entry   string             `json:"entry"`
		Symbol  string             `json:"symbol"`
	}{Entry: entry, Symbol: symbol}
	for _, s := range sol.Sources {
		if plain.Suffix(path.Base(s.Path)) == ".py" {
			request.Sources = append(request.Sources, s)
		}
	}
	if request.Sources == nil {
		return &facts{}, nil
	}
	return ask(python, request)
}

// Definition returns the faults of a definition's reference and constraints as Python code. It fails if they could not
// be checked.
func Definition(def *trace.Definition, python Python) (faults []string, err error) {
	f, err := ask(python, struct {
		Reference   string   `json:"reference"`
		Constraints []string `json:"constraints"`
	}{def.Reference, def.Constraints})
	if err != nil {
		return nil, err
	}
	say := func(what string, fault *pyFault) {
		if fault != nil && fault.Doubtful {
			what, fault.Text = what+" for Python "+f.Version, fault.Text+"; a later Python may accept it"
		}
		if fault != nil {
			faults = append(faults, fmt.Sprintf("%s: %s (line %d)", what, fault.Text, fault.Line))
		}
	}
	say("Reference must be valid Python code", f.Reference)
	for _, c := range f.Constraints {
		say("Constraints must be valid Python expressions", c)
	}
	return faults, nil
}

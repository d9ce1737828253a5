package source

import (
	"fmt"
	"path"
	"slices"
	"strings"

	words "fisub/internal/plain"

	"fisub/internal/trace"
)

// forbidden are libraries of finished kernels, by the name under which Python imports them.
var forbidden = strings.Fields(
	"flashinfer deep_gemm sgl_kernel sglang vllm flash_attn flash_attn_interface flash_mla fla xformers " +
		"transformer_engine tensorrt_llm tensorrt aiter flashmla mamba_ssm causal_conv1d liger_kernel sageattention " +
		"lmdeploy vllm_flash_attn deep_ep")

// networked are modules that need a network.
var networked = strings.Fields(
	"urllib urllib3 requests httpx aiohttp socket http ftplib huggingface_hub wget websocket paramiko")

// absent are modules that the evaluation's image does not have.
var absent = strings.Fields("cupy jax tensorflow numba pycuda paddle mlx mxnet")

const forbiddenHint = "write the kernel itself: calls of kernel libraries are forbidden; cuBLAS, through torch too, " +
	"is not"

// python inspects the Python sources; those of another language are not run, and only what they import is looked at.
func (n *inspector) python(run Python) {
	compiled := n.compiles()
	if ext := suffix(path.Base(n.entry)); !compiled && ext != ".py" {
		hint := ""
		if slices.Contains(cudaCompiled, strings.ToLower(ext)) {
			hint = `set language = "cuda"`
		}
		n.add(Error, "entry-suffix", n.entry, "", -1, hint, "entry file is not a Python file")
		return
	}
	entry := n.entry
	if compiled {
		entry = ""
	}
	f, err := solutionFacts(run, n.sol, entry, n.symbol)
	if err != nil && !compiled {
		n.add(Note, "python-not-read", "", "", -1, "install Python 3.8 or later, or set FISUB_PYTHON to one",
			"Python sources were not looked at: %v", err)
	}
	if err != nil {
		return
	}
	for _, file := range f.Files {
		if file.Error != nil && !compiled {
			n.syntax(f.Version, file)
		}
		for _, fact := range file.Facts {
			if fact.Kind == "import" {
				n.tvmModule(file.Path, fact)
			}
			if !compiled {
				n.pyFact(file.Path, fact)
			}
		}
	}
	if f.Entry != nil && !compiled {
		n.pyEntry(f.Entry)
	}
}

// syntax tells what CPython does not take. Only what is certainly run, and not Python for the contest's, is an error.
func (n *inspector) syntax(version string, file pyFile) {
	found := Finding{Code: "python-syntax", Severity: Error, Path: file.Path, Line: file.Error.Line,
		Col: file.Error.Column, Msg: "not valid Python: " + file.Error.Text}
	switch {
	case file.Error.Doubtful:
		found.Severity, found.Msg = Warning, fmt.Sprintf("not valid Python %s: %s", version, file.Error.Text)
		found.Hint = "the contest's Python is 3.12: see that it takes it"
	case !file.Reached:
		found.Severity, found.Hint = Warning, "delete the file where nothing imports it"
	}
	n.findings = append(n.findings, found)
}

// tvmModule looks for tvm.ffi, which is no module: the package is called tvm_ffi.
func (n *inspector) tvmModule(file string, f pyFact) {
	if f.Name != "tvm.ffi" && !strings.HasPrefix(f.Name, "tvm.ffi.") &&
		(f.Name != "tvm" || !slices.Contains(f.Names, "ffi")) {
		return
	}
	severity := Error
	if !f.Reached || f.Guarded {
		severity = Warning
	}
	n.at(severity, "tvm-ffi-module", file, f.pyPlace, "write tvm_ffi, or delete the file where nothing calls it",
		"there is no module tvm.ffi")
}

// pyFact judges what the code does. What the entry does not reach is a warning for an error, and a note for a warning.
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
	switch f.Kind {
	case "import":
		n.module(file, f, add)
	case "call":
		n.pyCall(file, f, add)
	case "name":
		lib, torch := strings.CutPrefix(f.Name, "torch.ops.")
		if torch && slices.Contains(forbidden, lib) {
			add(Error, "forbidden-library", forbiddenHint, "%s is used", lib)
		} else if !torch {
			add(Note, "autotune",
				"fix the configuration for each shape: a choice that changes while it is timed is a RUNTIME_ERROR",
				"autotuning runs at evaluation")
		}
	case "literal":
		switch f.Name {
		case "image":
			add(Error, "shipped-binary", binaryHint, "a compiled kernel in a string")
		case "ptx":
			add(Error, "shipped-binary", binaryHint, "a kernel in PTX, which is the output of a compiler")
		default:
			add(Warning, "binary-text", binaryHint, "a string of %d characters that looks like encoded data", f.Size)
		}
	case "cache":
		add(Warning, "cached-by-pointer", cachedHint, "%s keeps something by address from call to call", f.Name)
	case "seen":
		add(Warning, "cached-by-pointer", cachedHint, "the call ends at once if an address is one in %s", f.Name)
	}
}

// module judges an import.
func (n *inspector) module(file string, f pyFact, add func(s Severity, code, hint, format string, args ...any)) {
	top, _, _ := strings.Cut(f.Name, ".")
	switch {
	case f.Level > 0 || f.Own && f.Helped:
	case f.Own:
		add(Error, "absolute-import", fmt.Sprintf("write from . import %s, or from .%s import ...", top, top),
			"absolute import of %s, which is a file of this solution", f.Name)
	case slices.Contains(forbidden, top) && f.Called:
		n.at(Error, "forbidden-library", file, f.pyPlace, forbiddenHint, "%s is used", top)
	case slices.Contains(forbidden, top) && !f.About:
		n.at(Warning, "forbidden-library", file, f.pyPlace,
			"leave the import out: where the evaluation does not have it, the file does not load",
			"%s is imported; calls of it, which the entry does not seem to reach, are forbidden", top)
	case slices.Contains(networked, top):
		add(Warning, "network", "there is no network at evaluation", "%s is imported", top)
	case slices.Contains(absent, top):
		add(Warning, "absent-module",
			"dependencies are not installed: the evaluation has torch, triton, numpy and what comes with CUDA",
			"%s is imported, which the evaluation does not have", top)
	case top == "subprocess" || top == "pip":
		add(Warning, "subprocess", "a kernel has no use for a process", "%s is imported", top)
	}
}

// pyCall judges a call by the name of what is called.
func (n *inspector) pyCall(file string, f pyFact, add func(s Severity, code, hint, format string, args ...any)) {
	last := f.Name[strings.LastIndexByte(f.Name, '.')+1:]
	rule := calls["."+last]
	if strings.Contains(f.Name, ".") && rule == nil {
		rule = calls[f.Name]
	}
	switch {
	case rule != nil:
		add(rule.severity, rule.code, rule.hint, rule.text, f.Name)
	case last == "CDLL" || last == "LoadLibrary" || last == "load_library":
		if !strings.HasPrefix(f.Argument, "libcuda") && !strings.HasPrefix(f.Argument, "libnvrtc") {
			add(Warning, "dlopen", "ship sources only; binding = \"tvm-ffi\" compiles CUDA", "%s loads code at run time", f.Name)
		}
	case f.Name == "torch.cuda.Stream" && !n.ordered():
		add(Warning, "own-stream", streamHint, streamText, f.Name)
	case strings.HasPrefix(f.Name, "torch.hub."):
		add(Warning, "network", "there is no network at evaluation", "%s downloads", f.Name)
	case slices.Contains(moduleLoads, last):
		if !slices.ContainsFunc(n.sol.Sources, func(s trace.SourceFile) bool {
			return s.Path == file && strings.Contains(s.Content, "nvrtc")
		}) {
			add(Error, "shipped-binary", binaryHint, "%s loads a compiled kernel", last)
		}
	case (f.Name == "open" || last == "load" || last == "fromfile" || last == "Path") &&
		(strings.HasPrefix(f.Argument, "/") || strings.HasPrefix(f.Argument, "~")):
		add(Warning, "absolute-path", "the evaluation has the sources and nothing else",
			"a path of this machine is read, %s", clip(f.Argument))
	}
}

// pyEntry looks for the entry in its file.
func (n *inspector) pyEntry(e *pyEntry) {
	if e.Class != nil && len(e.Defs) == 0 {
		n.at(Error, "class-entry", n.entry, *e.Class, "name a function, which may keep an instance",
			"entry %s is a class: the call would make an instance and return it", n.symbol)
		return
	}
	if len(e.Defs) == 0 {
		if e.Bound {
			return
		}
		hint := fmt.Sprintf("define it: def %s(...)", n.symbol)
		slices.Sort(e.Functions)
		if near := words.Nearest(n.symbol, e.Functions); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %q?", n.entry+"::"+near[0])
		}
		n.add(Error, "no-function", n.entry, "", -1, hint, "no top-level function %s", n.symbol)
		return
	}
	if first := e.Defs[0]; first.jit() && n.sol.Spec.Language == trace.Python {
		n.at(Note, "jit-language", n.entry, first.pyPlace, `set language = "triton"`,
			"language is python, but %s is a Triton function", n.symbol)
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

// jit tells whether f is a Triton kernel, which cannot be called without a grid.
func (f pyFunction) jit() bool {
	return slices.ContainsFunc(f.Decorators, func(name string) bool {
		return slices.Contains([]string{"triton.jit", "triton.autotune", "triton.heuristics", "jit", "autotune"}, name)
	})
}

// pyFunction returns what is wrong with the call of f, or nil.
func (n *inspector) pyFunction(f pyFunction) *Finding {
	one := inspector{sol: n.sol, def: n.def, alike: map[[2]string]int{}}
	found := func(code, hint, format string, args ...any) *Finding {
		one.at(Error, code, n.entry, f.pyPlace, hint, format, args...)
		return &one.findings[0]
	}
	if f.jit() {
		return found("jit-entry", "name a Python function that launches it",
			"entry %s is a @triton.jit function, which cannot be called without a grid", n.symbol)
	}
	if f.IsAsync {
		return found("async-entry", "write def, without async",
			"entry %s is async: a call makes a coroutine and runs nothing", n.symbol)
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
			plural(want, "positional parameter"), sum, n.symbol, takes)
	case f.Keyword != "":
		return found("keyword-only", "give it a default",
			"%s has the keyword-only parameter %s without a default, which a call never gives", n.symbol, f.Keyword)
	}
	if n.sol.Spec.DestinationPassingStyle || f.Returns == "" {
		return nil
	}
	out := n.outputs()
	switch {
	case f.Returns == "other" && out != 1:
		return found("return-annotation", "write tuple[...] of so many types, without quotes and without from __future__ "+
			"import annotations, or leave it out",
			"the builder takes the annotation of %s for one value, but the definition has %s", n.symbol, plural(out, "output"))
	case f.Returns != "other" && f.Values != out:
		return found("return-annotation", "mend the annotation, which the builder reads, or leave it out",
			"%s is annotated to return %s, but the definition has %s", n.symbol, plural(f.Values, "value"),
			plural(out, "output"))
	}
	return nil
}

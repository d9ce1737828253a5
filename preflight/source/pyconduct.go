package source

import (
	"slices"
	"strconv"
	"strings"

	"fisub/internal/trace"
	"fisub/internal/trace/pysyntax"
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

// tvmModule looks for tvm.ffi, which is no module: the package is called tvm_ffi.
func (n *inspector) tvmModule(s trace.SourceFile, lines []pyLine, severity Severity) {
	for _, line := range lines {
		ts := line.tokens
		for i, t := range ts {
			ffi := i > 0 && i+2 < len(ts) && t.is("tvm") && ts[i+2].is("ffi") &&
				(ts[i+1].is(".") && (ts[0].is("import") || ts[0].is("from")) || ts[i+1].is("import") && ts[0].is("from"))
			if ffi {
				n.add(severity, "tvm-ffi-module", s.Path, s.Content, t.pos,
					"write tvm_ffi, or delete the file where nothing calls it", "there is no module tvm.ffi")
			}
		}
	}
}

// pyConduct looks at what the code of one Python file does.
func (n *inspector) pyConduct(s trace.SourceFile, lines []pyLine, m *pyModule) {
	if err := pysyntax.Module(strings.TrimPrefix(s.Content, bom)); err != nil {
		text := err.Error()
		msg, rest, _ := cutLast(text, " (line ")
		line, _ := strconv.Atoi(strings.TrimSuffix(rest, ")"))
		line = min(line, 1+strings.Count(s.Content, "\n"))
		n.findings = append(n.findings, Finding{Code: "python-syntax", Severity: Error, Path: s.Path, Line: line,
			Col: min(line, 1), Msg: "not valid Python: " + msg})
	}
	n.tvmModule(s, lines, Error)
	own := map[string]bool{}
	for _, f := range n.sol.Sources {
		own[strings.TrimSuffix(f.Path, ".py")] = true
	}
	library := func(pos int, name string) {
		top, _, _ := strings.Cut(name, ".")
		switch {
		case own[top]:
		case slices.Contains(forbidden, top):
			n.add(Error, "forbidden-library", s.Path, s.Content, pos, forbiddenHint, "%s is used", top)
		case slices.Contains(networked, top):
			n.add(Warning, "network", s.Path, s.Content, pos, "there is no network at evaluation", "%s is imported", top)
		case slices.Contains(absent, top):
			n.add(Warning, "absent-module", s.Path, s.Content, pos,
				"dependencies are not installed: the evaluation has torch, triton, numpy and what comes with CUDA",
				"%s is imported, which the evaluation does not have", top)
		case top == "subprocess" || top == "pip":
			n.add(Warning, "subprocess", s.Path, s.Content, pos, "a kernel has no use for a process", "%s is imported", top)
		}
	}
	for _, imp := range m.imports {
		if !imp.relative {
			library(imp.pos, imp.module)
		}
	}
	dicts, tainted := map[string]bool{}, map[string]bool{}
	for _, line := range lines {
		ts := line.tokens
		if line.indent == 0 && len(ts) > 3 && ts[0].kind == ident && (ts[1].is("=") || ts[1].is(":")) {
			if last := ts[len(ts)-1]; last.is("}") || last.is(")") && slices.ContainsFunc(ts, func(t token) bool {
				return t.is("dict") || t.is("OrderedDict") || t.is("defaultdict") || t.is("WeakValueDictionary")
			}) {
				dicts[ts[0].text] = true
			}
		}
	}
	for _, line := range lines {
		ts := line.tokens
		for i := range ts {
			n.pyToken(s, ts, i, library)
		}
		n.pyCache(s, ts, dicts, tainted)
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// dotted is the dotted name that ends at token i.
func dotted(ts []token, i int) string {
	name := ts[i].text
	for n := 0; n < maxPath && i >= 2 && ts[i-1].is(".") && ts[i-2].kind == ident; n++ {
		i -= 2
		name = ts[i].text + "." + name
	}
	return name
}

func (n *inspector) pyToken(s trace.SourceFile, ts []token, i int, library func(pos int, name string)) {
	t := ts[i]
	if t.kind == str {
		if what, severity := binaryText(t.text); what != "" {
			code := "shipped-binary"
			if severity == Warning {
				code = "binary-text"
			}
			n.add(severity, code, s.Path, s.Content, t.pos, binaryHint, "%s", what)
		}
		return
	}
	if t.kind != ident {
		return
	}
	add := func(severity Severity, code, hint, format string, args ...any) {
		n.add(severity, code, s.Path, s.Content, t.pos, hint, format, args...)
	}
	if i >= 4 && ts[i-1].is(".") && ts[i-2].is("ops") && ts[i-3].is(".") && ts[i-4].is("torch") &&
		t.text != "load_library" {
		library(t.pos, t.text)
	}
	if i+1 >= len(ts) || !ts[i+1].is("(") {
		if name := dotted(ts, i); name == "triton.autotune" {
			add(Note, "autotune",
				"fix the configuration for each shape: a choice that changes while it is timed is a RUNTIME_ERROR",
				"autotuning runs at evaluation")
		}
		return
	}
	var argument string
	if i+2 < len(ts) && ts[i+2].kind == str {
		argument = strings.TrimLeft(ts[i+2].text, "rbuftRBUFT")
		argument = strings.Trim(argument, `"'`)
	}
	switch name := dotted(ts, i); {
	case t.text == "import_module" || t.text == "__import__":
		library(t.pos, argument)
	case name == "torch.cuda.synchronize":
		add(Warning, "synchronize",
			"leave it out: the harness waits, and the wait is timed where the call has several kernels", "%s waits for the GPU",
			name)
	case name == "torch.cuda.CUDAGraph" || name == "torch.cuda.graph" || t.text == "make_graphed_callables":
		add(Warning, "cuda-graph", "launch the kernels themselves; a graph is no faster under the contest's timing",
			"%s: a graph keeps the addresses that it was captured with", name)
	case name == "triton.autotune":
		add(Note, "autotune",
			"fix the configuration for each shape: a choice that changes while it is timed is a RUNTIME_ERROR",
			"autotuning runs at evaluation")
	case t.text == "device_print" || name == "tl.static_print":
		add(Note, "printf", "take it out before you submit", "%s in device code: every call of every timing grows the log",
			t.text)
	case name == "os.system" || name == "os.popen" || strings.HasPrefix(name, "os.exec") ||
		strings.HasPrefix(name, "os.spawn"):
		add(Warning, "subprocess", "a kernel has no use for a process", "%s starts a process", name)
	case t.text == "CDLL" || t.text == "LoadLibrary" || t.text == "load_library":
		add(Warning, "dlopen", "ship sources only; binding = \"tvm-ffi\" compiles CUDA", "%s loads code at run time", name)
	case strings.HasPrefix(name, "torch.hub."):
		add(Warning, "network", "there is no network at evaluation", "%s downloads", name)
	case slices.Contains(moduleLoads, t.text):
		if !strings.Contains(s.Content, "nvrtc") {
			add(Error, "shipped-binary", binaryHint, "%s loads a compiled kernel", t.text)
		}
	case (name == "open" || t.text == "load" || t.text == "fromfile" || t.text == "Path") &&
		(strings.HasPrefix(argument, "/") || strings.HasPrefix(argument, "~")):
		add(Warning, "absolute-path", "the evaluation has the sources and nothing else", "a path of this machine is read, %s",
			clip(argument))
	}
}

// pyCache looks for a dictionary of the module that is indexed by the address of a tensor.
func (n *inspector) pyCache(s trace.SourceFile, ts []token, dicts, tainted map[string]bool) {
	at := slices.IndexFunc(ts, func(t token) bool { return t.is("data_ptr") })
	for i, t := range ts {
		if at < 0 && t.kind == ident && tainted[t.text] && (i == 0 || !ts[i-1].is(".")) {
			at = i
		}
	}
	if at < 0 {
		return
	}
	if ts[0].kind == ident && len(ts) > 1 && ts[1].is("=") && at > 1 && !dicts[ts[0].text] && len(tainted) < 64 {
		tainted[ts[0].text] = true
	}
	for i, t := range ts {
		if t.kind != ident || !dicts[t.text] {
			continue
		}
		indexed := i+1 < len(ts) && (ts[i+1].is("[") || ts[i+1].is(".") && i+2 < len(ts) &&
			(ts[i+2].is("get") || ts[i+2].is("setdefault")))
		if indexed || i > 0 && ts[i-1].is("in") {
			n.add(Warning, "cached-by-pointer", s.Path, s.Content, t.pos,
				"compute in every call: addresses come back with other contents, and cached results are forbidden",
				"%s keeps something by address from call to call", t.text)
			return
		}
	}
}

package source

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"fisub/internal/trace"
)

// maxAlike is how many findings of one kind are told for one file, and one of autotuning; the last one says how many
// more there are.
const maxAlike = 5

// limit cuts findings that repeat themselves.
func limit(findings []Finding) []Finding {
	type kind struct{ path, code string }
	count := map[kind]int{}
	most := func(code string) int {
		if code == "autotune" {
			return 1
		}
		return maxAlike
	}
	var out []Finding
	for _, f := range findings {
		k := kind{f.Path, f.Code}
		if count[k]++; count[k] <= most(f.Code) {
			out = append(out, f)
		}
	}
	for i := len(out) - 1; i >= 0; i-- {
		k := kind{out[i].Path, out[i].Code}
		if more := count[k] - most(k.code); more > 0 {
			out[i].Msg += fmt.Sprintf(" (and %d more in this file)", more)
			count[k] = 0
		}
	}
	return out
}

// featureRules are the PTX instructions and qualifiers that ptxas 13.0 refuses for plain sm_100, found by trying.
var featureRules = []struct {
	text  string
	first string // of the arch that has it
}{
	{"wgmma.", "sm_90a"},
	{"tcgen05.", "sm_100a"},
	{"setmaxnreg.", "sm_90a, sm_100a"},
	{"tensormap.replace", "sm_90a, sm_100a"},
	{"cvt.rs.", "sm_100a"},
	{".e2m1x2", "sm_100a"},
	{".e2m3x2", "sm_100a"},
	{".e3m2x2", "sm_100a"},
	{".ue8m0x2", "sm_100a"},
	{".block_scale", "sm_120a"},
	{".cta_group::", "sm_100a"},
	{".tile::gather4", "sm_100a"},
	{".tile::scatter4", "sm_100a"},
	{".multicast::cluster::all", "sm_100a"},
	{"ldmatrix.sync.aligned.m16n16", "sm_100a"},
	{"ldmatrix.sync.aligned.m8n16", "sm_100a"},
	{"stmatrix.sync.aligned.m16n8", "sm_100a"},
}

// features looks for what the contest's builder cannot assemble, since it compiles for sm_100 without the "a".
func (n *inspector) features(f *file, t *text) {
	if !n.asm {
		return
	}
	for _, rule := range featureRules {
		for from := 0; ; {
			at := strings.Index(t.code[from:], rule.text)
			if at < 0 {
				break
			}
			at += from
			from = at + len(rule.text)
			if at > 0 && rule.text[0] != '.' && (isLetter(t.code[at-1]) || t.code[at-1] == '.') {
				continue
			}
			severity, hint := Error, fmt.Sprintf("it needs %s, and the contest's builder compiles for sm_100: use what "+
				"that has, such as mma.sync and cp.async.bulk", rule.first)
			switch t.at(at) {
			case dead:
				continue
			case conditional:
				severity, hint = Warning,
					fmt.Sprintf("it needs %s: the contest's builder compiles for sm_100, so see that the other branch is right",
						rule.first)
			}
			n.add(severity, "needs-a-arch", f.path, f.text, at, hint, "%s is not in sm_100", strings.Trim(rule.text, "."))
		}
	}
}

// foreignHeaders are folders of headers that the contest's builder has no include path to, with the advice for each.
var foreignHeaders = map[string]string{
	"cutlass": "its headers may be used, but the builder has no include path to them: copy what is needed beside the " +
		"kernel, in one folder",
	"cute": "CUTLASS's headers may be used, but the builder has no include path to them: copy what is needed beside " +
		"the kernel, in one folder",
	"torch":    "take tvm::ffi::TensorView, or set binding = \"torch\"",
	"ATen":     "take tvm::ffi::TensorView, or set binding = \"torch\"",
	"c10":      "take tvm::ffi::TensorView, or set binding = \"torch\"",
	"pybind11": "export with " + exportMacro + ", or set binding = \"torch\"",
	"cudnn":    "cuDNN is not linked", "flashinfer": "write the kernel without it",
}

// includes looks for headers that the builder does not find.
func (n *inspector) includes(f *file, t *text) {
	sources := map[string]bool{}
	for _, s := range n.sol.Sources {
		sources[path.Clean(s.Path)] = true
	}
	torch := n.sol.Spec.Binding == "torch"
	for _, inc := range t.includes {
		if inc.region == dead || sources[path.Clean(inc.name)] || sources[path.Join(path.Dir(f.path), inc.name)] {
			continue
		}
		severity := Error
		if inc.region == conditional {
			severity = Warning
		}
		top, _, sub := strings.Cut(inc.name, "/")
		hint, foreign := foreignHeaders[top]
		if !sub {
			hint, foreign = foreignHeaders[strings.TrimSuffix(inc.name, ".h")]
			foreign = foreign && top == "cudnn.h"
		}
		switch {
		case foreign && !(torch && (top == "torch" || top == "ATen" || top == "c10" || top == "pybind11")):
			n.add(severity, "missing-include", f.path, f.text, inc.pos, hint, "%s is not on the builder's include path",
				inc.name)
		case inc.name == "sys/socket.h" || inc.name == "netdb.h" || inc.name == "curl/curl.h":
			n.add(Warning, "network", f.path, f.text, inc.pos, "there is no network at evaluation", "the network is used (%s)",
				inc.name)
		case path.IsAbs(inc.name):
			n.add(severity, "missing-include", f.path, f.text, inc.pos, "put it beside the kernel",
				"%s is a path of this machine", inc.name)
		case !inc.angle && (strings.HasPrefix(inc.name, "../") || strings.HasPrefix(inc.name, "./../")):
			n.add(severity, "missing-include", f.path, f.text, inc.pos,
				"put it beside the kernel: sources are packed without subfolders", "%s is not packed", inc.name)
		}
	}
}

// An Include is a quoted #include of a file that is not among the sources. It may be a header of the toolchain.
type Include struct {
	Name  string
	Angle bool
	Sure  bool // it is compiled whatever the macros
	Path  string
	Line  int
	Col   int
}

// Includes returns the headers that the C++ sources of sol include and that are not among them, in order of place.
func Includes(sol *trace.Solution) []Include {
	sources := map[string]bool{}
	for _, s := range sol.Sources {
		sources[path.Clean(s.Path)] = true
	}
	n := &inspector{sol: sol}
	var out []Include
	for _, s := range sol.Sources {
		if !slices.Contains(cppScanned, suffix(path.Base(s.Path))) {
			continue
		}
		for _, inc := range readText(s.Content).includes {
			if inc.region == dead || sources[path.Clean(inc.name)] || sources[path.Join(path.Dir(s.Path), inc.name)] {
				continue
			}
			n.findings = n.findings[:0]
			n.add(Note, "", s.Path, s.Content, inc.pos, "", "")
			f := n.findings[0]
			out = append(out, Include{Name: inc.name, Angle: inc.angle, Sure: inc.region == plain, Path: f.Path, Line: f.Line,
				Col: f.Col})
		}
	}
	return out
}

// A call is a rule about calls of functions. In Python, names have their dots; one that begins with a dot holds
// whatever stands before it.
type call struct {
	code     string
	severity Severity
	hint     string
	text     string // with the function's name for %s
	once     bool   // not told where it is guarded: behind static or if
	device   bool   // told in device code only
	host     bool   // told outside of device code only
}

var calls = func() map[string]*call {
	table := map[string]*call{}
	rule := func(c call, names string) {
		for name := range strings.FieldsSeq(names) {
			table[name] = &c
		}
	}
	rule(call{code: "synchronize", severity: Warning, host: true, text: "%s waits for the GPU",
		hint: "leave it out: the harness waits, and the wait is timed where the call has several kernels"},
		"cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cuCtxSynchronize cuStreamSynchronize "+
			"torch.cuda.synchronize")
	rule(call{code: "allocation", severity: Note, once: true, host: true, text: "%s in every call",
		hint: "allocate once and keep the buffer: reused workspace is allowed"},
		"cudaMalloc cudaMallocAsync cudaMallocManaged cudaMallocHost cudaHostAlloc cudaFree cudaFreeAsync cuMemAlloc "+
			"cuMemAlloc_v2 cuMemAllocAsync")
	rule(call{code: "default-stream", severity: Warning, once: true, host: true, text: "%s works on the default stream",
		hint: "use its Async form on the stream of TVMFFIEnvGetStream"},
		"cudaMemcpy cudaMemset cudaMemcpyToSymbol cudaMemcpy2D")
	rule(call{code: "cuda-graph", severity: Warning, text: "%s: a graph keeps the addresses that it was captured with",
		hint: "launch the kernels themselves; a graph is no faster under the contest's timing"},
		"cudaStreamBeginCapture cudaGraphLaunch cudaGraphInstantiate cuGraphLaunch cuStreamBeginCapture "+
			"torch.cuda.CUDAGraph torch.cuda.graph .make_graphed_callables")
	rule(call{code: "dlopen", severity: Warning, text: "%s loads code at run time",
		hint: "compile it into the submission"}, "dlopen dlmopen")
	rule(call{code: "subprocess", severity: Warning, text: "%s starts a process", hint: "a kernel has no use for one"},
		"popen fork vfork execl execv execvp execve posix_spawn os.system os.popen os.execl os.execle os.execlp os.execlpe "+
			"os.execv os.execve os.execvp os.execvpe os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve "+
			"os.spawnvp os.spawnvpe")
	rule(call{code: "printf", severity: Note, device: true,
		text: "%s in device code: every call of every timing grows the log",
		hint: "take it out before you submit"}, "printf .device_print tl.static_print")
	return table
}()

var moduleLoads = []string{"cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
	"cuLibraryLoadData",
	"cuLibraryLoadFromFile", "cudaLibraryLoadData", "cudaLibraryLoadFromFile"}

const binaryHint = "ship sources only: prebuilt kernels are forbidden"

// conduct looks at what the code of one C++ file does. Its tokens are those of lexCPP. Calls under an #if are left out.
func (n *inspector) conduct(f *file, lines *text, ts []token) {
	depth, function := 0, -1 // open braces, and the depth of that of the function we are in, or -1
	device := false          // it runs on the GPU
	body := 0                // token index of its brace
	decl := 0                // first token of the declaration
	for i, t := range ts {
		switch t.kind {
		case str:
			n.literal(f, t)
		case number:
			if c := t.text[len(t.text)-1]; len(t.text) >= 10 || len(t.text) <= 4 &&
				(c == 'f' || c == 'F' || c == '7' || c == '0') {
				n.bytes(f, ts, i)
			}
		case punct:
			switch t.text[0] {
			case '{':
				if function < 0 {
					var isFunction bool
					if isFunction, device = bodyOf(ts[decl:i]); isFunction {
						function, body = depth, i
					}
				}
				depth++
				decl = i + 1
			case '}':
				if depth = max(0, depth-1); depth <= function {
					function = -1
				}
				decl = i + 1
			case ';':
				decl = i + 1
			case '<':
				if i+2 < len(ts) && ts[i+1].is("<") && ts[i+2].is("<") && ts[i+2].pos == t.pos+2 &&
					(i == 0 || !ts[i-1].is("<") || ts[i-1].pos != t.pos-1) && (function < 0 || !device) {
					n.launch(f, ts, i)
				}
			}
		case ident:
			if i+1 == len(ts) || ts[i+1].kind != punct {
				if t.text == "ifstream" && i+3 < len(ts) && ts[i+1].kind == ident && (ts[i+2].is("(") || ts[i+2].is("{")) &&
					strings.HasPrefix(ts[i+3].text, `"/`) {
					n.add(Warning, "absolute-path", f.path, f.text, t.pos, pathHint, "a path of this machine is read, %s",
						clip(ts[i+3].text))
				}
				continue
			}
			switch ts[i+1].text[0] {
			case '<':
				if t.text == "unordered_map" || t.text == "map" {
					n.pointerMap(f, ts, i, decl, function >= 0)
				}
			case '(':
				if function >= 0 && !ts[i-1].is(".") && !ts[i-1].is("->") {
					n.call(f, lines, ts, i, body, device)
				}
			}
		}
	}
}

const pathHint = "the evaluation has the sources and nothing else"

// bodyOf tells whether the brace behind a declaration opens the body of a function, and whether that runs on the GPU.
func bodyOf(decl []token) (function, device bool) {
	scoped := false
	for _, d := range decl {
		switch d.text {
		case "__global__", "__device__":
			device = true
		case "(":
			function = true
		case "namespace", "struct", "class", "union", "enum", "extern":
			scoped = scoped || !function
		}
	}
	return function && !scoped, device
}

// call looks at the call at i, in a function whose brace is at body.
func (n *inspector) call(f *file, lines *text, ts []token, i, body int, device bool) {
	t := ts[i]
	first := ts[min(i+2, len(ts)-1)]
	rule := calls[t.text]
	load := slices.Contains(moduleLoads, t.text)
	if rule == nil && !load && t.text != "system" && t.text != "fopen" && t.text != "open" || lines.at(t.pos) != plain {
		return
	}
	switch {
	case load:
		if !n.nvrtc {
			n.add(Error, "shipped-binary", f.path, f.text, t.pos, binaryHint, "%s loads a compiled kernel", t.text)
		}
	case t.text == "system":
		if !ts[i-1].is("::") || i > 1 && ts[i-2].is("std") {
			n.add(Warning, "subprocess", f.path, f.text, t.pos, "a kernel has no use for one", "system starts a process")
		}
	case rule == nil:
		if first.kind == str && (strings.HasPrefix(first.text, `"/`) || strings.HasPrefix(first.text, `"~`)) {
			n.add(Warning, "absolute-path", f.path, f.text, t.pos, pathHint, "%s of a path of this machine, %s", t.text,
				clip(first.text))
		}
	case rule.device && !device, rule.host && device:
	case rule.once && slices.ContainsFunc(ts[body:i], func(t token) bool {
		return t.is("static") || t.is("if") || t.is("call_once")
	}):
	default:
		n.add(rule.severity, rule.code, f.path, f.text, t.pos, rule.hint, rule.text, t.text)
	}
}

// launch looks at the launch whose <<< begins at i.
func (n *inspector) launch(f *file, ts []token, i int) {
	end := i + 3
	for ; end < len(ts) && end < i+maxNear; end++ {
		if ts[end].is("(") || ts[end].is("[") || ts[end].is("{") {
			end = match(ts, end) - 1
		} else if ts[end].is(">") && end+2 < len(ts) && ts[end+1].is(">") && ts[end+2].is(">") &&
			ts[end+2].pos == ts[end].pos+2 {
			break
		} else if ts[end].is(";") {
			return
		}
	}
	if end >= len(ts) || end >= i+maxNear {
		return
	}
	var args [][]token
	start := i + 3
	for k := start; k <= end; k++ {
		if k < end && (ts[k].is("(") || ts[k].is("[") || ts[k].is("{")) {
			k = match(ts, k) - 1
			continue
		}
		if k < end && ts[k].is("<") && ts[k-1].kind == ident {
			k = matchAngle(ts, k) - 1
			continue
		}
		if k == end || ts[k].is(",") {
			args = append(args, ts[start:k])
			start = k + 1
		}
	}
	if len(args) >= 4 {
		last := args[3]
		if len(last) == 0 {
			return
		}
		switch last[len(last)-1].text {
		case "0", "nullptr", "NULL", "cudaStreamDefault", "cudaStreamLegacy", "cudaStreamPerThread":
		default:
			return
		}
		if len(last) > 1 && !last[0].is("(") {
			return
		}
	}
	hint := "launch on static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id))"
	if n.sol.Spec.Binding == "torch" {
		hint = "launch on at::cuda::getCurrentCUDAStream()"
	}
	n.add(Warning, "default-stream", f.path, f.text, ts[i].pos, hint,
		"a kernel is launched on the default stream, not on the harness's")
}

// pointerMap looks at the map type at i: one that outlives the call, with addresses as keys.
func (n *inspector) pointerMap(f *file, ts []token, i, decl int, inFunction bool) {
	end := matchAngle(ts, i+1)
	key := ts[i+2 : max(i+2, end-1)]
	depth := 0
	for k, t := range key {
		switch {
		case t.is("<") || t.is("("):
			depth++
		case t.is(">") || t.is(")"):
			depth--
		case t.is(",") && depth == 0:
			key = key[:k]
		}
		if t.is(",") && depth == 0 {
			break
		}
	}
	pointer := slices.ContainsFunc(key, func(t token) bool {
		return t.is("*") || t.is("uintptr_t") || t.is("intptr_t") || t.is("CUdeviceptr")
	}) && !slices.ContainsFunc(key, func(t token) bool { return t.is("char") })
	static := !inFunction || slices.ContainsFunc(ts[min(decl, i):i], func(t token) bool {
		return t.is("static") || t.is("thread_local")
	})
	named := end < len(ts) && ts[end].kind == ident && end+1 < len(ts) && !ts[end+1].is("(") && !ts[end+1].is(",") &&
		!ts[end+1].is(")")
	if pointer && static && named {
		n.add(Warning, "cached-by-pointer", f.path, f.text, ts[i].pos,
			"compute in every call: addresses come back with other contents, and cached results are forbidden",
			"%s keeps something by address from call to call", ts[end].text)
	}
}

// literal looks at a string for compiled code.
func (n *inspector) literal(f *file, t token) {
	what, severity := binaryText(t.text)
	if what != "" {
		code := "shipped-binary"
		if severity == Warning {
			code = "binary-text"
		}
		n.add(severity, code, f.path, f.text, t.pos, binaryHint, "%s", what)
	}
}

// binaryText tells what compiled code a literal holds; "" is none.
func binaryText(lit string) (what string, severity Severity) {
	if len(lit) < 16 {
		return "", ""
	}
	open := strings.IndexAny(lit, `"'`)
	head := strings.TrimLeft(lit[open+1:min(len(lit), open+64)], `"'`)
	for _, magic := range []string{`\x7fELF`, `\x7f" "ELF`, `\177ELF`, "\x7fELF", "f0VMR"} {
		if strings.HasPrefix(head, magic) {
			return "a compiled kernel in a string", Error
		}
	}
	if len(lit) < 1<<20 && strings.Contains(lit, ".version ") && strings.Contains(lit, ".target sm_") &&
		strings.Contains(lit, ".entry") {
		return "a kernel in PTX, which is the output of a compiler", Error
	}
	if len(lit) >= 4096 {
		other := 0
		for i := 0; i < len(lit); i++ {
			if c := lit[i]; classes[c] == 0 && c != '+' && c != '/' && c != '=' && c != '\n' || c >= 0x80 {
				other++
			}
		}
		if other*64 < len(lit) {
			return fmt.Sprintf("a string of %d characters that looks like encoded data", len(lit)), Warning
		}
	}
	return "", ""
}

// bytes looks at the number at i: the beginning of a cubin or fatbin in an array.
func (n *inspector) bytes(f *file, ts []token, i int) {
	if t := ts[i].text; strings.EqualFold(strings.TrimRight(t, "uUlL"), "0xba55ed50") {
		n.add(Error, "shipped-binary", f.path, f.text, ts[i].pos, binaryHint, "a compiled kernel in an array")
		return
	}
	if i+6 >= len(ts) || !ts[i+1].is(",") {
		return
	}
	for _, magic := range [][]string{{"0x7f", "0x45", "0x4c", "0x46"}, {"127", "69", "76", "70"},
		{"0x50", "0xed", "0x55", "0xba"}} {
		same := true
		for k, want := range magic {
			same = same && strings.EqualFold(ts[i+2*k].text, want)
		}
		if same {
			n.add(Error, "shipped-binary", f.path, f.text, ts[i].pos, binaryHint, "a compiled kernel in an array")
		}
	}
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

// types compares the declared types of an exported function with what the harness passes. It judges only types that it
// knows; another one may be an alias.
func (n *inspector) types(f *function) *Finding {
	if f.from <= 0 || f.to <= f.from || f.to > len(f.file.text) {
		return nil
	}
	list := split(lexCPP(f.file.text[f.from:f.to], nil))
	torch := n.sol.Spec.Binding == "torch"
	i := 0
	check := func(name string, spec trace.TensorSpec) *Finding {
		if i >= len(list) {
			return nil
		}
		p := list[i]
		i++
		got, kind := paramKind(p)
		want, hint := "a tensor", "take a tvm::ffi::TensorView"
		if torch {
			hint = "take a torch::Tensor"
		}
		if spec.Scalar {
			want, hint = "a number of dtype "+spec.DType.String(), "take an int64_t or a double"
		}
		float := spec.DType.IsFloat()
		switch kind {
		case "pointer":
			if spec.Scalar {
				break
			}
		case "tensor", "torch":
			if !spec.Scalar && (kind == "torch") == torch {
				return nil
			}
		case "int":
			if spec.Scalar && !float {
				return nil
			}
			if spec.Scalar {
				hint = "take a double: a fraction is not converted to an integer"
			}
		case "float":
			if spec.Scalar {
				return nil
			}
		default:
			return nil
		}
		pos := f.pos
		if len(p) > 0 {
			pos = f.from + p[0].pos
		}
		one := inspector{sol: n.sol}
		one.add(Error, "parameter-type", f.file.path, f.file.text, pos, hint, "parameter %d of %s is %s, but %s is %s", i,
			f.name(), got, name, want)
		return &one.findings[0]
	}
	for name, spec := range n.def.Inputs.All() {
		if found := check(name, spec); found != nil {
			return found
		}
	}
	if !n.sol.Spec.DestinationPassingStyle {
		return nil
	}
	for name, spec := range n.def.Outputs.All() {
		if found := check(name, spec); found != nil {
			return found
		}
	}
	return nil
}

// paramKind is the type of a parameter, as text, and what it takes: "pointer", "tensor", "torch", "int", "float", or
// "".
func paramKind(p []token) (text, kind string) {
	if i := slices.IndexFunc(p, func(t token) bool { return t.is("=") }); i >= 0 {
		p = p[:i]
	}
	if len(p) > 1 && p[len(p)-1].kind == ident && (p[len(p)-2].kind == ident || p[len(p)-2].is("*") ||
		p[len(p)-2].is("&") || p[len(p)-2].is(">")) {
		if last := p[len(p)-2].text; last != "const" && last != "unsigned" && last != "long" || p[len(p)-2].is("*") {
			p = p[:len(p)-1]
		}
	}
	var b strings.Builder
	has := func(names ...string) bool {
		return slices.ContainsFunc(p, func(t token) bool { return t.kind == ident && slices.Contains(names, t.text) })
	}
	pointer := false
	for i, t := range p {
		if t.kind == str || t.kind >= ppIf {
			return "", ""
		}
		if i > 0 && t.kind == ident && p[i-1].kind == ident {
			b.WriteByte(' ')
		}
		b.WriteString(t.text)
		pointer = pointer || t.is("*")
	}
	text = b.String()
	switch {
	case has("Any", "AnyView", "Variant", "auto", "Array", "Map", "Function", "ObjectRef", "String", "string", "Optional",
		"optional"):
		return text, ""
	case has("DLTensor"):
		return text, "tensor"
	case pointer && has("float", "double", "int", "void", "half", "__half", "__nv_bfloat16", "nv_bfloat16",
		"__nv_fp8_e4m3", "int8_t", "int32_t", "int64_t", "uint8_t"):
		return text, "pointer"
	case has("Tensor", "TensorView") && has("torch", "at"):
		return text, "torch"
	case has("Tensor", "TensorView"):
		return text, "tensor"
	case pointer:
		return text, ""
	case has("float", "double") && len(p) <= 3:
		return text, "float"
	case has("int", "int32_t", "int64_t", "long", "short", "unsigned", "uint32_t", "uint64_t", "size_t") && len(p) <= 4:
		return text, "int"
	}
	return text, ""
}

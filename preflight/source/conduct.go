package source

import (
	"fmt"
	"maps"
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

// features are PTX instructions and qualifiers that ptxas 13.2 refuses for plain sm_100, with the arch that has them.
var features = map[string]string{
	"wgmma.": "sm_90a", "tcgen05.": "sm_100a", "setmaxnreg.": "sm_90a, sm_100a", "tensormap.replace": "sm_90a, sm_100a",
	"cvt.rs.": "sm_100a", ".e2m1x2": "sm_100a", ".e2m3x2": "sm_100a", ".e3m2x2": "sm_100a", ".ue8m0x2": "sm_100a",
	".block_scale": "sm_120a", ".cta_group::": "sm_100a", ".tile::gather4": "sm_100a", ".tile::scatter4": "sm_100a",
	".multicast::cluster::all": "sm_100a", "sync.aligned.m16n16": "sm_100a", "sync.aligned.m8n16": "sm_100a",
}

// Features are the places in C++ sources with PTX that sm_100 without the "a" does not have, one for each file and
// instruction. What does not reach the assembler, it does not refuse: only who has compiled knows whether they count.
func Features(sol *trace.Solution) []Finding {
	n := &inspector{sol: sol, alike: map[[2]string]int{}}
	names := slices.Sorted(maps.Keys(features))
	for _, s := range n.cpp() {
		seen := map[string]bool{}
		n.tokens = scan(s.Content, n.tokens)
		for _, t := range n.tokens {
			if t.kind != str {
				continue
			}
			for _, name := range names {
				if !seen[name] && strings.Contains(t.text, name) {
					seen[name] = true
					n.add(Warning, "needs-a-arch", s.Path, s.Content, t.pos+strings.Index(t.text, name), NeedsArch(features[name]),
						"%s is not in sm_100, and not in what is compiled for it", strings.Trim(name, "."))
				}
			}
		}
	}
	return limit(n.findings)
}

// NeedsArch is the advice for what plain sm_100 does not have.
func NeedsArch(arch string) string {
	return fmt.Sprintf("it needs %s, and the contest's builder compiles for sm_100: see that the other branch "+
		"is right, or "+
		"use what sm_100 has, such as mma.sync and cp.async.bulk", arch)
}

// What is said of printf in device code; %s is who prints.
const (
	PrintfText = "%s in device code: every call of every timing grows the log"
	PrintfHint = "take it out before you submit"
)

// A call is a rule about calls of functions. In Python, names have their dots; one that begins with a dot holds
// whatever stands before it.
type call struct {
	code     string
	severity Severity
	hint     string
	text     string // with the function's name for %s
	once     bool   // not told where it is guarded: behind static or if
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
	rule(call{code: "default-stream", severity: Note, once: true, host: true, text: "%s works on the default stream",
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
	rule(call{code: "printf", severity: Note, text: PrintfText, hint: PrintfHint}, ".device_print tl.static_print")
	return table
}()

var moduleLoads = []string{"cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary",
	"cuLibraryLoadData",
	"cuLibraryLoadFromFile", "cudaLibraryLoadData", "cudaLibraryLoadFromFile"}

const (
	cachedHint = "compute in every call: addresses come back with other contents, and cached results are forbidden"
	streamText = "%s: nothing orders the work on this stream with that of the caller's"
	streamHint = "take the stream that the caller gives, or let it wait for an event of this one"
)

// ordered reports whether a source lets a stream or the host wait for another stream.
func (n *inspector) ordered() bool {
	return slices.ContainsFunc(n.sol.Sources, func(s trace.SourceFile) bool {
		return slices.ContainsFunc([]string{"StreamWaitEvent", "Synchronize", "StreamQuery", "EventQuery", "wait_stream",
			"wait_event", "synchronize", ".wait(", ".query("}, func(w string) bool { return strings.Contains(s.Content, w) })
	})
}

const binaryHint = "ship sources only: prebuilt kernels are forbidden"

// conduct looks at what the code of one C++ file does. Calls under an #if are left out. With nvrtc, some source of the
// solution compiles at run time, and may load what it compiled.
func (n *inspector) conduct(s trace.SourceFile, nvrtc bool) {
	n.tokens = scan(s.Content, n.tokens)
	f := &reader{inspector: n, file: s, ts: n.tokens, body: -1, kept: map[string]bool{}}
	depth, outer, decl := 0, 0, 0 // braces, those around the function, and where the declaration begins
	for i, t := range f.ts {
		f.at = i
		switch t.text {
		case "{":
			if prev := f.text(-1); f.body < 0 && slices.Contains([]string{")", "const", "noexcept", "override"}, prev) {
				f.once = false
				f.body, outer, f.device = i, depth, slices.ContainsFunc(f.ts[max(decl, i-maxNear):i], func(t token) bool {
					return t.text == "__global__" || t.text == "__device__"
				})
			}
			depth++
		case "}":
			if depth = max(0, depth-1); depth <= outer {
				f.body = -1
			}
		case "<":
			if f.text(1) == "<" && f.text(2) == "<" && f.text(-1) != "<" && !f.device && !t.maybe {
				f.launch()
			}
		}
		if t.text == "{" || t.text == "}" || t.text == ";" {
			decl = i + 1
		}
		switch t.kind {
		case include:
			if name := strings.Trim(t.text, " \t\"<>"); name == "sys/socket.h" || name == "netdb.h" || name == "curl/curl.h" {
				f.tell(Warning, "network", "there is no network at evaluation", "the network is used (%s)", name)
			}
		case str:
			f.literal()
		case number:
			f.array()
		case ident:
			f.once = f.once || t.text == "static" || t.text == "if" || t.text == "call_once"
			switch {
			case slices.Contains([]string{"unordered_map", "map", "unordered_set", "set"}, t.text) && f.text(1) == "<":
				f.pointerMap(decl)
			case t.text == "static" && f.body >= 0:
				f.static()
			case t.text == "data_ptr" && f.body >= 0 && !t.maybe:
				f.seenBefore()
			case t.text == "ifstream" && (f.text(2) == "(" || f.text(2) == "{"):
				f.path(3)
			case f.text(1) == "(" && f.body >= 0 && !t.maybe && f.text(-1) != "." && f.text(-2)+f.text(-1) != "->":
				f.call(nvrtc)
			}
		}
	}
}

// maxNear bounds how many tokens are looked at from one, so that no source takes quadratic time.
const maxNear = 512

// A reader stands at one token of a C++ file.
type reader struct {
	*inspector
	file   trace.SourceFile
	ts     []token
	at     int
	body   int             // the token that opens the function we are in, or -1
	device bool            // it runs on the GPU
	once   bool            // it may do what is here once, not in every call: a static, or an if, stands before
	kept   map[string]bool // static variables of functions
}

// text is that of the token so far from here, "" where there is none.
func (f *reader) text(by int) string {
	if i := f.at + by; i >= 0 && i < len(f.ts) {
		return f.ts[i].text
	}
	return ""
}

func (f *reader) tell(s Severity, code, hint, format string, args ...any) {
	f.add(s, code, f.file.Path, f.file.Content, f.ts[f.at].pos, hint, format, args...)
}

// call looks at the call that is here.
func (f *reader) call(nvrtc bool) {
	name := f.text(0)
	rule := calls[name]
	switch {
	case slices.Contains(moduleLoads, name):
		if !nvrtc {
			f.tell(Error, "shipped-binary", binaryHint, "%s loads a compiled kernel", name)
		}
	case name == "system" && (f.text(-1) != ":" || f.text(-3) == "std"):
		f.tell(Warning, "subprocess", "a kernel has no use for one", "system starts a process")
	case name == "fopen" || name == "open":
		f.path(2)
	case name == "cudaStreamCreateWithFlags" || name == "cudaStreamCreateWithPriority":
		flags := f.text(2)
		for by := 3; by < 24 && f.text(by) != ";"; by++ {
			flags += f.text(by)
		}
		if strings.Contains(flags, "cudaStreamNonBlocking") && !f.ordered() {
			f.tell(Warning, "own-stream", streamHint, streamText, name)
		}
	case rule == nil || rule.host && f.device:
	case rule.once && f.once:
	default:
		f.tell(rule.severity, rule.code, rule.hint, rule.text, name)
	}
}

// path looks at the name of a file, so far from here.
func (f *reader) path(by int) {
	if name := f.text(by); strings.HasPrefix(name, `"/`) || strings.HasPrefix(name, `"~`) {
		f.tell(Warning, "absolute-path", "the evaluation has the sources and nothing else",
			"a path of this machine is read, %s", clip(name))
	}
}

// launch looks at the launch whose <<< is here.
func (f *reader) launch() {
	depth, args, last := 0, 1, ""
	for by := 3; by < maxNear && f.text(by) != "" && f.text(by) != ";"; by++ {
		switch t := f.text(by); {
		case strings.ContainsAny(t, "([{") && len(t) == 1:
			depth++
		case strings.ContainsAny(t, ")]}") && len(t) == 1:
			depth--
		case t == "," && depth == 0:
			args++
			last = f.text(by + 1)
		case t == ">" && f.text(by+1) == ">" && f.text(by+2) == ">" && depth == 0:
			if args < 4 || slices.Contains(strings.Fields("0 nullptr NULL cudaStreamDefault cudaStreamLegacy "+
				"cudaStreamPerThread"), last) {
				f.tell(Note, "default-stream", "take the stream that the caller gives: TVMFFIEnvGetStream, or "+
					"at::cuda::getCurrentCUDAStream", "a kernel is launched on the default stream")
			}
			return
		}
	}
}

// pointerMap looks at the map type that is here: one that outlives the call, with addresses as keys.
func (f *reader) pointerMap(decl int) {
	depth, end, key, pointer := 0, 1, true, false
	for ; end < maxNear && f.text(end) != "" && f.text(end) != ";"; end++ {
		t := f.text(end)
		if t == "<" {
			depth++
		} else if t == ">" {
			depth--
		}
		if depth == 0 {
			break
		}
		key = key && (t != "," || depth > 1)
		pointer = pointer || key && slices.Contains([]string{"*", "uintptr_t", "intptr_t", "CUdeviceptr"}, t)
		if key && t == "char" {
			return
		}
	}
	lasts := f.body < 0 || slices.ContainsFunc(f.ts[max(min(decl, f.at), f.at-maxNear):f.at], func(t token) bool {
		return t.text == "static" || t.text == "thread_local"
	})
	if name, then := f.text(end+1), f.text(end+2); pointer && lasts && name != "" && letter(name[0]) &&
		(then == ";" || then == "=" || then == "{") {
		f.tell(Warning, "cached-by-pointer", cachedHint,
			"%s keeps something by address from call to call", name)
	}
}

// static notes the name of the static variable that is declared here.
func (f *reader) static() {
	name := ""
	for by := 1; by < 16; by++ {
		switch t := f.text(by); {
		case t == "(" || t == "":
			return
		case t == "=" || t == ";" || t == "{":
			f.kept[name] = true
			return
		case letter(t[0]):
			name = t
		}
	}
}

// seenBefore looks at the address that is here: it must not end the call when it is that of the last call.
func (f *reader) seenBefore() {
	begin, end := -1, 3 // of the call, with what it is a method of
	for slices.Contains([]string{".", ">", "-"}, f.text(begin)) {
		begin--
	}
	if f.text(1) != "(" || f.text(2) != ")" || begin == -1 {
		return
	}
	other := ""
	switch {
	case f.text(begin-1)+f.text(begin-2) == "==":
		other, begin = f.text(begin-3), begin-3
	case f.text(end)+f.text(end+1) == "==":
		other, end = f.text(end+2), end+3
	}
	if then := f.text(end + 1); f.kept[other] && f.text(begin-1) == "(" && f.text(begin-2) == "if" && f.text(end) == ")" &&
		(then == "return" || then == "{" && f.text(end+2) == "return") {
		f.tell(Warning, "cached-by-pointer", cachedHint, "the call ends at once if an address is that of an earlier call")
	}
}

// literal looks at the string that is here for compiled code.
func (f *reader) literal() {
	lit := f.text(0)
	head := strings.TrimLeft(lit[strings.IndexByte(lit, '"'):], `"`)
	for _, magic := range []string{`\x7fELF`, `\x7f" "ELF`, `\177ELF`, "\x7fELF", "f0VMR"} {
		if strings.HasPrefix(head, magic) {
			f.tell(Error, "shipped-binary", binaryHint, "a compiled kernel in a string")
		}
	}
	if strings.Contains(lit, ".version ") && strings.Contains(lit, ".target sm_") && strings.Contains(lit, ".entry") {
		f.tell(Error, "shipped-binary", binaryHint, "a kernel in PTX, which is the output of a compiler")
	}
	encoded := func(r rune) rune {
		if r < 0x80 && letter(byte(r)) || strings.ContainsRune("0123456789+/=\n", r) {
			return r
		}
		return -1
	}
	if len(lit) >= 4096 && (len(lit)-len(strings.Map(encoded, lit)))*64 < len(lit) {
		f.tell(Warning, "binary-text", binaryHint, "a string of %d characters that looks like encoded data", len(lit))
	}
}

// array looks at the number that is here: the beginning of a cubin or fatbin in an array.
func (f *reader) array() {
	first := strings.ToLower(strings.TrimRight(f.text(0), "uUlL"))
	next := strings.ToLower(strings.Join([]string{first, f.text(2), f.text(4), f.text(6)}, " "))
	if first == "0xba55ed50" || slices.Contains([]string{"0x7f 0x45 0x4c 0x46", "127 69 76 70", "0x50 0xed 0x55 0xba"},
		next) {
		f.tell(Error, "shipped-binary", binaryHint, "a compiled kernel in an array")
	}
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

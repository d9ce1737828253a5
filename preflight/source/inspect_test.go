package source

import (
	"bytes"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"testing"

	"fisub/internal/tensor"
	"fisub/internal/trace"
)

// decode is the interface of GDN decode: nine inputs, two outputs.
func decode(testing.TB) *trace.Definition {
	def := definition("q k v state A_log a dt_bias b scale", "output new_state")
	def.Inputs.Set("scale", trace.TensorSpec{DType: tensor.Float32, Scalar: true})
	return def
}

func definition(inputs, outputs string) *trace.Definition {
	def := &trace.Definition{Name: "d"}
	for name := range strings.FieldsSeq(inputs) {
		def.Inputs.Set(name, trace.TensorSpec{DType: tensor.BFloat16})
	}
	for name := range strings.FieldsSeq(outputs) {
		def.Outputs.Set(name, trace.TensorSpec{DType: tensor.BFloat16})
	}
	return def
}

// small has two inputs and one output.
func small() *trace.Definition { return definition("x y", "out") }

func solution(lang trace.Language, entry string, files ...string) *trace.Solution {
	sol := &trace.Solution{Name: "n", Definition: "d", Author: "a", Spec: trace.BuildSpec{
		Language: lang, TargetHardware: []string{"cuda"}, EntryPoint: entry, DestinationPassingStyle: true,
	}}
	for i := 0; i+1 < len(files); i += 2 {
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: files[i], Content: files[i+1]})
	}
	return sol
}

// interpreter is the python3 of this machine, not a program that looks for one each time; or "".
var interpreter = sync.OnceValue(func() string {
	out, _ := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out))
})

// cpython runs scripts in the python3 of this machine; a test that needs one is skipped without.
func cpython(t *testing.T) Python {
	path := interpreter()
	if path == "" {
		t.Skip("no python3")
	}
	return func(script string, stdin []byte) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), path, "-I", "-S", "-c", script)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), t.Output()
		return cmd.Output()
	}
}

func findings(sol *trace.Solution, def *trace.Definition, python Python) []string {
	var got []string
	for _, f := range Inspect(sol, def, python) {
		text := fmt.Sprintf("%s: %s", f.Severity, f)
		if f.Hint != "" {
			text += " (" + f.Hint + ")"
		}
		got = append(got, text)
	}
	return got
}

const exportRun = "\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);\n"

// TestScan: comments, preprocessor lines and what is under #if 0 are left out; what is under another #if is marked.
func TestScan(t *testing.T) {
	for src, want := range map[string]string{
		"a // b\n/* c */ d //\\\ne\nf":                           "a d f",
		"#if 0\n don't\n#else\na\n#endif\nb":                     "a b",
		"#if 0\n#if X\nz\n#else\ny\n#endif\n#endif\nb":           "b",
		"#ifndef G\n#define G x\na\n#ifdef D\nb\n#endif\n#endif": "a b?",
		"#if 1\na\n#else\nb\n#endif":                             "a",
		"#if X\na\n#else\nb\n#endif c\nd":                        "a? b? d",
		"#define A(x) \\\n  x /* \n */ y\nz":                     "z",
		`"a\"b" 'c' '"' u8"d" R"x(e )" f)x" L'g'`:                `"a\"b" 'c' '"' u8"d" R"x(e )" f)x" L 'g'`,
		"1'000.5f<<<x":        "1'000.5f < < < x",
		"#include <a/b.h>\nx": " <a/b.h> x",
		"\"open\nx":           "\"open x",
	} {
		var got []string
		for _, t := range scan(src, nil) {
			if t.maybe {
				t.text += "?"
			}
			got = append(got, t.text)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%q: got %q, want %q", src, text, want)
		}
	}
}

// TestCall compares parameters, as the compiler tells them, with a call.
func TestCall(t *testing.T) {
	for _, test := range []struct {
		parameters string
		returns    bool
		want       string
	}{
		{"ttttttttftt", false, ""},
		{"????????f??", false, ""},
		{"ttttttttft", false, "expected 11 parameters (9 inputs + 2 outputs), but kernel has 10 " +
			"(the arguments are q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state)"},
		{"ttttttttf", false, "expected 11 parameters (9 inputs + 2 outputs), but kernel has 9 " +
			"(take the outputs as the last parameters, or set destination_passing_style = false)"},
		{"ttttttttf", true, ""},
		{"ttttttttftt", true, "expected 9 parameters (9 inputs, outputs returned), but kernel has 11 " +
			"(return the outputs, or set destination_passing_style = true)"},
		{"ttttttttitt", false, "parameter 9 of kernel is an integer, but scale is a number of dtype float32 " +
			"(take an int64_t or a double)"},
		{"tpttttttftt", false, "parameter 2 of kernel is a pointer, but k is a tensor (take a tvm::ffi::TensorView)"},
		{"ttttttttfti", false, "parameter 11 of kernel is an integer, but new_state is a tensor (take a tvm::ffi::TensorView)"},
	} {
		sol := solution(trace.CUDA, "kernel.cu::kernel")
		sol.Spec.DestinationPassingStyle = !test.returns
		got := ""
		if f := Call(sol, decode(t), test.parameters); f != nil {
			got = fmt.Sprintf("%s (%s)", f, f.Hint)
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.parameters, got, test.want)
		}
	}
}

// TestConduct: rules that the projects of preflight's testdata do not show.
func TestConduct(t *testing.T) {
	for _, test := range []struct {
		name, src string
		want      []string
	}{
		{"own things of those names", "struct S { void system(); }; void f(S s) { s.system(); s->popen(); my::system(1); }", nil},
		{"under #if", "void f() {\n#ifdef DEBUG\n cudaDeviceSynchronize();\n k<<<1, 2>>>();\n#endif\n}", nil},
		{"in device code", "__device__ void f() { cudaDeviceSynchronize(); k<<<1, 2>>>(); } void g() {}", nil},
		{"guarded", "void* f() { static void* p = [] { void* q; cudaMalloc(&q, 4); return q; }(); return p; }", nil},
		{"streams", "void f() { k<<<g(1, 2), dim3{1, 2}, 0, s>>>(); k<1, 2><<<1, 2, 0, 0>>>(); }",
			[]string{"note: kernel.cu:1:55: a kernel is launched on the default stream"}},
		{"declaration", "cudaError_t cudaMalloc(void** p, size_t n);", nil},
		{"maps", "std::map<std::string, float*> a; std::unordered_map<const char*, int> b; " +
			"void f() { std::map<void*, int> c; }", nil},
		{"pointer map", "static thread_local std::unordered_map<std::pair<void*, int>, int> cache;",
			[]string{"warning: kernel.cu:1:26: cache keeps something by address from call to call"}},
		{"headers", "#include <sys/socket.h>\nint x;",
			[]string{"warning: kernel.cu:1:9: the network is used (sys/socket.h)"}},
		{"nvrtc", "void f() { nvrtcCompileProgram(p); cuModuleLoadData(&m, image); }", nil},
		{"image under #if 0", "#if 0\nunsigned char a[] = {0x7f, 0x45, 0x4c, 0x46};\n#endif", nil},
		{"image under #if", "#if X\nunsigned char a[] = {0x7F, 0x45, 0x4C, 0x46};\n#endif",
			[]string{"error: kernel.cu:2:22: a compiled kernel in an array"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, f := range Inspect(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", test.src+exportRun), nil, nil) {
				got = append(got, fmt.Sprintf("%s: %s", f.Severity, f))
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestExcerpt: a finding in C++ shows its line.
func TestExcerpt(t *testing.T) {
	found := Inspect(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", "void f() {\n  system(a);\n}"+exportRun), nil, nil)
	if len(found) != 1 || found[0].Excerpt != "2 |   system(a);\n  |   ^" {
		t.Errorf("got %+v, want one finding with its line", found)
	}
}

// TestFeatures: once for each file and instruction, in strings only.
func TestFeatures(t *testing.T) {
	sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu",
		"// tcgen05.ld\nasm(\"tcgen05.alloc\"); asm(\"tcgen05.ld; wgmma.fence\");\n#if 0\nasm(\"setmaxnreg.inc\");\n#endif",
		"main.py", "'tcgen05.'")
	var got []string
	for _, f := range Features(sol) {
		got = append(got, f.String())
	}
	want := []string{"kernel.cu:2:6: tcgen05 is not in sm_100, and not in what is compiled for it",
		"kernel.cu:2:40: wgmma is not in sm_100, and not in what is compiled for it"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInspectFiles(t *testing.T) {
	run := "void run(T a, T b, T c) {}"
	torch := func(sol *trace.Solution) *trace.Solution {
		sol.Spec.Binding = "torch"
		return sol
	}
	module := "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.doc() = \"x\";\n  m.def(\"kernel\", &run, \"doc\");\n}"
	tests := []struct {
		name string
		sol  *trace.Solution
		want []string
	}{
		{"export elsewhere", solution(trace.CUDA, "kernel.cu::kernel", "binding.cpp", "void run(T, T, T);"+exportRun,
			"kernel.cu", run), nil},
		{"in a header", solution(trace.CUDA, "kernel.cu::kernel", "a.cuh",
			"#define E(n) TVM_FFI_DLL_EXPORT_TYPED_FUNC(n, run)\n"+run, "kernel.cu", "E(kernel)"), nil},
		{"only in an upper-case file", solution(trace.CUDA, "K.CU::kernel", "K.CU", run+exportRun), []string{
			"error: K.CU: entry file is not one that language cuda compiles (.cu .cpp .cc .cxx .c) (builders match suffixes " +
				"case-sensitively: rename it to end in .cu)",
			`error: K.CU: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`,
		}},
		{"Python entry of CUDA", solution(trace.CUDA, "binding.py::kernel", "binding.py", "x", "kernel.cu", run+exportRun),
			[]string{
				"error: binding.py: entry file is not one that language cuda compiles (.cu .cpp .cc .cxx .c) (name the source " +
					"that exports the function, such as kernel.cu)"}},
		{"cu in cpp", solution(trace.CPP, "kernel.cu::kernel", "kernel.cu", run+exportRun),
			[]string{
				`error: kernel.cu: entry file is not one that language cpp compiles (.cpp .cc .cxx .c) (set language = "cuda")`}},
		{"torch", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+module)), nil},
		{"torch with defaults", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu",
			"void run(T a, T b, T c, int d) {}\n"+strings.Replace(module, `"doc"`, `py::arg("d") = 3`, 1))), nil},
		{"torch without module", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+exportRun)),
			[]string{`error: kernel.cu: no source has a PYBIND11_MODULE (its exports are tvm-ffi's: set binding = "tvm-ffi")`}},
		{"torch with another name", torch(solution(trace.CUDA, "kernel.cu::kernal", "kernel.cu", run+module)),
			[]string{`error: kernel.cu: no m.def("kernal", ...) in the PYBIND11_MODULE (add m.def("kernal", &<function>); to the PYBIND11_MODULE)`}},
		{"no export at all", solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run), []string{"error: kernel.cu: no source " +
			`exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"pybind", solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+module), []string{"error: kernel.cu: no source " +
			`exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (it is a PYBIND11_MODULE: set binding = "torch")`}},
		{"CUDA entry of Triton", solution(trace.Triton, "kernel.cu::kernel", "kernel.cu", run),
			[]string{`error: kernel.cu: entry file is not a Python file (set language = "cuda")`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := findings(test.sol, small(), cpython(t)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// FuzzInspect: any source of C++ is read without a panic, and every finding has a place inside its source.
func FuzzInspect(f *testing.F) {
	for _, src := range []string{
		"void run(int a) {}" + exportRun,
		"#define A(x, ...) TVM_FFI_DLL_EXPORT_TYPED_FUNC(x##x, __VA_ARGS__) #x\nA(a, b, c)\nA()", "template <class T", "R\"(",
		"#if 0\n#elif 1\n#else\n#endif\n#endif\n#else", "namespace a::b { extern \"C\" { } } } }",
		"a::b<c>::d(e) : f{g} -> h {", "PYBIND11_MODULE(a, m) { m.def(\"kernel\", x<1, 2>, y = 3); ",
		"0:", "k<<<1, 2>>>(x);", "f() { k<<<a<b, (c>>>", "asm(\"wgmma.\"", "#ifndef A\n#define A\n#include <",
		"static std::unordered_map<void*, int> m;", "/*", "//\\\n", "'", "1'", "\"\\",
		"#define", "#define A(", "extern \"C\" int __tvm_ffi_kernel(x) {",
		"TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, [&]<class T>(int a",
		"TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel,", "void kernel<(a>(b) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel<)",
	} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		for _, binding := range []string{"", "torch"} {
			sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", src)
			sol.Spec.Binding = binding
			for _, found := range Inspect(sol, small(), nil) {
				if lines := 1 + strings.Count(src, "\n"); found.Line > lines || found.Line > 0 && found.Col < 1 || found.Msg == "" {
					t.Errorf("got %+v, want a place in %d lines", found, lines)
				}
			}
		}
	})
}

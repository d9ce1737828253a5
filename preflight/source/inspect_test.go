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

// TestInspectCUDA looks at one file kernel.cu with entry point kernel.cu::kernel and three arguments.
func TestInspectCUDA(t *testing.T) {
	tests := []struct {
		name, src string
		want      []string
	}{
		{"good", "void run(TensorView x, TensorView y, TensorView out) {}" + exportRun, nil},
		{"export first", "void run(TensorView, TensorView, TensorView);" + exportRun +
			"void run(TensorView x, TensorView y, TensorView out) {}", nil},
		{"declaration only", "void run(TensorView, TensorView, TensorView, int);" + exportRun,
			[]string{
				"error: kernel.cu:1:6: expected 3 parameters (2 inputs + 1 output), but run has 4 (the arguments are x, y, out)"}},
		{"too few", "// é\nvoid  run(TensorView x, TensorView y) {}" + exportRun,
			[]string{
				"error: kernel.cu:2:7: expected 3 parameters (2 inputs + 1 output), but run has 2 (take the outputs as the last " +
					"parameters, or set destination_passing_style = false)"}},
		{"too many", "/* é\n */ void run(T a, T b, T c, int d) {}" + exportRun,
			[]string{
				"error: kernel.cu:2:10: expected 3 parameters (2 inputs + 1 output), but run has 4 (the arguments are x, y, out)"}},
		{"void list", "void run(void) {}" + exportRun,
			[]string{
				"error: kernel.cu:1:6: expected 3 parameters (2 inputs + 1 output), but run has 0 (the arguments are x, y, out)"}},
		{"no export", "void kernel(T a, T b, T c) {}",
			[]string{
				`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"export of a near name", "void run(T a, T b, T c) {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernels, run);",
			[]string{
				`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (did you mean "kernel.cu::kernels"?)`}},
		{"export of another", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(zzz, run);",
			[]string{`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (exported: zzz)`}},
		{"export in a comment",
			"// TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);\n/* TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run); */ // a " +
				"\\\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);\n",
			[]string{`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"export in strings",
			`const char* a = "\" TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);"; auto b = R"x(" )" TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run); )x";`,
			[]string{`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"export under if 0", "#if 0\n don't" + exportRun + "#else\n#endif",
			[]string{`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"export behind if 0", "#if 0\n#if X\n#else\n#endif\n don't\n#else\nvoid run(T a, T b, T c) {}" + exportRun +
			"#endif", nil},
		{"export in a body", "void f() {" + exportRun + "}",
			[]string{`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"alternatives", "#ifdef OLD\nvoid run(int a) {}\n#else\nvoid run(T a, T b, T c) {}\n#endif" + exportRun, nil},
		{"unbalanced alternatives",
			"#ifdef OLD\nvoid f(int a) {\n#else\nvoid f(int a, int b) {\n#endif\n}\nnamespace a {\n#if A\nvoid g() { if (x) " +
				"{\n#else\nvoid g() { {\n#endif\n}}\n}\nvoid run(int a, int b) {}" + exportRun,
			[]string{
				"error: kernel.cu:15:6: expected 3 parameters (2 inputs + 1 output), but run has 2 (take the outputs as the " +
					"last parameters, or set destination_passing_style = false)"}},
		{"namespaces",
			"namespace a { namespace b::c { inline namespace d { void run(T x) {} } void run(T x, T y, T z) {} } " +
				"}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, a::b::c::run)\nint after;", nil},
		{"wrong one of two namespaces",
			"namespace a { void run(int x) {} }\nnamespace b { void run(int x, int y, int z) {} " +
				"}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, a::run)",
			[]string{
				"error: kernel.cu:1:20: expected 3 parameters (2 inputs + 1 output), but run has 1 (the arguments are x, y, out)"}},
		{"qualified definition", "void a::run(T x, T y, T z) noexcept {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, ::a::run);",
			nil},
		{"template",
			"template <typename T = std::array<int, 3>, int N = (1 > 2)> __host__ auto run(std::array<T, 2> a, int b = f<1, " +
				"2>(3, 4), int (*c)(int, int) = nullptr) -> decltype(f(1)) { return {}; " +
				"}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, (run<float, 3>));\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run<float, 3>);",
			nil},
		{"template with too few",
			"template <int N> void run(std::array<int, N> a, Optional<Map<A, B>> b) " +
				"{}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, &run<3>);",
			[]string{
				"error: kernel.cu:1:23: expected 3 parameters (2 inputs + 1 output), but run has 2 (take the outputs as the " +
					"last parameters, or set destination_passing_style = false)"}},
		{"attributes",
			"[[nodiscard]] __attribute__((visibility(\"default\"))) void run(T a, T b, T c) __attribute__((hot)) {}" + exportRun,
			nil},
		{"constructors and operators",
			"struct S { S(int a); void run(int); };\nS::S(int a) : x(a), y{a} { z(); }\nbool operator==(S a, S b) { return " +
				"a.x < b.x; }\nvoid S::operator()(int a) {}\nint v = {1}, w[] = {2};\nvoid run(int a, int b) {}" + exportRun,
			[]string{
				"error: kernel.cu:6:6: expected 3 parameters (2 inputs + 1 output), but run has 2 (take the outputs as the last " +
					"parameters, or set destination_passing_style = false)"}},
		{"lambda", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, [](TensorView a, std::pair<int, int> b) { f(1, 2); })",
			[]string{
				"error: kernel.cu:1:39: expected 3 parameters (2 inputs + 1 output), but kernel has 2 (take the outputs as the " +
					"last parameters, or set destination_passing_style = false)"}},
		{"kernel itself", "__global__ void __launch_bounds__(256) run(T a, T b, T c) {}" + exportRun,
			[]string{"error: kernel.cu:1:40: run is a __global__ function (export the host function that launches it)"}},
		{"packed", "void run(ffi::PackedArgs args, ffi::Any* rv) {}" + exportRun, nil},
		{"variadic", "template <class... A> void run(A... a) {}" + exportRun, nil},
		{"manual", "extern \"C\" int __tvm_ffi_kernel(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { return 0; }",
			nil},
		{"manual block",
			"extern \"C\" {\nTVM_FFI_DLL_EXPORT int __tvm_ffi_kernel(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { " +
				"return 0; }\n}", nil},
		{"manual mangled", "int __tvm_ffi_kernel(void* h, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) { return 0; }",
			[]string{`error: kernel.cu:1:5: __tvm_ffi_kernel is not extern "C" (declare it extern "C")`}},
		{"macro",
			"#define EXPORT(name, \\\n  fn) TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, fn)\nvoid run(int a, int b) " +
				"{}\nEXPORT(kernel, run)",
			[]string{
				"error: kernel.cu:3:6: expected 3 parameters (2 inputs + 1 output), but run has 2 (take the outputs as the last " +
					"parameters, or set destination_passing_style = false)"}},
		{"macro that pastes",
			"#define EXPORT(name, ...) int zzz; TVM_FFI_DLL_EXPORT_TYPED_FUNC(ker##name, __VA_ARGS__)\nvoid run(T a, T b, T " +
				"c) {}\nEXPORT(nel, run)", nil},
		{"macro for the C symbol",
			"#define EXPORT(name) extern \"C\" int __tvm_ffi_##name(void* h)\nEXPORT(kernel) { return 0; }", nil},
		{"macro that grows",
			"#define A(x) TVM_FFI_DLL_EXPORT_TYPED_FUNC(x, x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) " +
				"A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x) A(x)\nA(a a a a)\n" +
				"void run(T a, T b, T c) {}" + exportRun, nil},
		{"unknown function", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, run);",
			[]string{
				"note: kernel.cu:1:1: function run is not found in the sources: its parameters are not counted (define it in a " +
					"file that is packed)"}},
		{"cast", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, static_cast<void (*)(int)>(run));", nil},
		{"pybind", "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\"kernel\", &run); }",
			[]string{
				`error: kernel.cu: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (it is a PYBIND11_MODULE: set binding = "torch", or add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"digits and quotes", "int a = 1'000'000; char c = '\"', d = '\\'';\nvoid run(T a, T b, T c) {}" + exportRun, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := findings(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", test.src),
				small(), nil); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestInspectCall(t *testing.T) {
	nine := "void run(T q, T k, T v, T state, T A_log, T a, T dt_bias, T b, double scale%s) {}" + exportRun
	tests := []struct {
		name, src string
		dps       bool
		want      []string
	}{
		{"all", fmt.Sprintf(nine, ", T output, T new_state"), true, nil},
		{"one short", fmt.Sprintf(nine, ", T output"), true,
			[]string{"error: kernel.cu:1:6: expected 11 parameters (9 inputs + 2 outputs), but run has 10 " +
				"(the arguments are q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state)"}},
		{"value-returning", fmt.Sprintf(nine, ", T output, T new_state"), false, []string{
			"error: kernel.cu: a tvm-ffi function cannot return 2 outputs: the harness takes a tuple, not an array (set " +
				"destination_passing_style = true)",
			"error: kernel.cu:1:6: expected 9 parameters (9 inputs, outputs returned), but run has 11 (return the outputs, " +
				"or set destination_passing_style = true)"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", test.src)
			sol.Spec.DestinationPassingStyle = test.dps
			if got := findings(sol, decode(t), nil); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
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
			`error: K.CU: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"Python entry of CUDA", solution(trace.CUDA, "binding.py::kernel", "binding.py", "x", "kernel.cu", run+exportRun),
			[]string{
				"error: binding.py: entry file is not one that language cuda compiles (.cu .cpp .cc .cxx .c) (name the source " +
					"that exports the function, such as kernel.cu)"}},
		{"cu in cpp", solution(trace.CPP, "kernel.cu::kernel", "kernel.cu", run+exportRun),
			[]string{
				`error: kernel.cu: entry file is not one that language cpp compiles (.cpp .cc .cxx .c) (set language = "cuda")`}},
		{"torch", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+module)), nil},
		{"torch with too few", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", "void run(int a) {}\n"+module)),
			[]string{
				"error: kernel.cu:1:6: expected 3 parameters (2 inputs + 1 output), but run has 1 (the arguments are x, y, out)"}},
		{"torch with defaults", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu",
			"void run(T a, T b, T c, int d) {}\n"+strings.Replace(module, `"doc"`, `py::arg("d") = 3`, 1))), nil},
		{"torch without module", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+exportRun)),
			[]string{`error: kernel.cu: no source has a PYBIND11_MODULE (its exports are tvm-ffi's: set binding = "tvm-ffi")`}},
		{"torch with another name", torch(solution(trace.CUDA, "kernel.cu::kernal", "kernel.cu", run+module)),
			[]string{`error: kernel.cu: no m.def("kernal", ...) in the PYBIND11_MODULE (did you mean "kernel.cu::kernel"?)`}},
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

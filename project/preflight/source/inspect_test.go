package source

import (
	"bytes"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
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

// interpreter returns the path of the real python3 of this machine, past any launcher, or "".
var interpreter = sync.OnceValue(func() string {
	out, _ := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out))
})

// cpython runs scripts in the python3 of this machine, or skips the test.
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

// TestCall compares parameters, in the compiler's notation, with a call.
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

// TestFeatures: once for each file and instruction, and not in comments.
func TestFeatures(t *testing.T) {
	sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu",
		"// tcgen05.ld\nasm(\"// wgmma.fence\"); asm(\"tcgen05.alloc; tcgen05.ld\"); /* setmaxnreg.inc\n */", "main.py", "'tcgen05.'")
	var got []string
	for _, f := range Features(sol) {
		got = append(got, f.String())
	}
	want := []string{"kernel.cu:2:9: sm_100 has no wgmma, so the other branch is compiled",
		"kernel.cu:2:29: sm_100 has no tcgen05, so the other branch is compiled"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestBinaries: compiled kernels in the sources of any language, at their places.
func TestBinaries(t *testing.T) {
	const image, ptx = "error: kernel.cu:2:%d: a compiled kernel", "error: kernel.cu:2:%d: a compiled kernel in PTX"
	for src, want := range map[string]string{
		`unsigned char a[] = {0x7F, 0x45, 0x4C, 0x46, 2};`:     fmt.Sprintf(image, 22),
		`unsigned char a[] = {127,69,76,70};`:                  fmt.Sprintf(image, 22),
		`unsigned a[] = {0xBA55ED50, 0x00100001};`:             fmt.Sprintf(image, 17),
		`auto s = "\x7f" "ELF\x02\x01";`:                       fmt.Sprintf(image, 11),
		`a = b'\x7fELF\x02\x01\x01'`:                           fmt.Sprintf(image, 7),
		`a = "f0VMRgIBATMHAAAA"`:                               fmt.Sprintf(image, 5),
		`if data[:4] == b"\x7fELF": pass`:                      "",
		`auto s = ".version 8.8\n.target sm_100\n.entry k()";`: fmt.Sprintf(ptx, 11),
		`f(".version 8.8"); g(".target sm_100"); h(".entry");`: "",
	} {
		got := ""
		for _, f := range Inspect(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", "\n"+src+exportRun), nil, nil) {
			got += fmt.Sprintf("%s: %s", f.Severity, f)
			if !strings.HasPrefix(f.Excerpt, "2 | "+src) {
				t.Errorf("%s: got the excerpt %q", src, f.Excerpt)
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", src, got, want)
		}
	}
}

// TestIncludes: quoted headers that are not packed, outside of comments and conditions.
func TestIncludes(t *testing.T) {
	src := "#ifndef G\n#define G\n// #include \"a/comment.h\"\n#include \"a/plain.h\"\n  # include \"./b/own.cuh\"\n" +
		"#include <a/angle.h>\n#include \"cute/tensor.hpp\"\n#if X\n#include \"a/maybe.h\"\n#endif\n#include \"a/behind.h\"\n#endif"
	sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", src, "b/own.cuh", "")
	var got []string
	for _, f := range Includes(sol, nil) {
		got = append(got, f.String())
	}
	want := []string{"kernel.cu:4:10: a/plain.h is not packed, and not a header of CUDA, CUTLASS, PyTorch or tvm-ffi",
		"kernel.cu:11:10: a/behind.h is not packed, and not a header of CUDA, CUTLASS, PyTorch or tvm-ffi"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	sol.Sources[0].Content = strings.Repeat("#include \"a/b.h\"\n", 100)
	if all := Includes(sol, nil); len(all) != maxAlike || !strings.HasSuffix(all[maxAlike-1].Msg, "(and 95 more in this file)") {
		t.Errorf("got %v, want %d findings, and how many more there are", all, maxAlike)
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
			"error: K.CU: entry file: language cuda compiles only .cu .cpp .cc .cxx .c (builders match suffixes " +
				"case-sensitively: rename it to end in .cu)",
			`error: K.CU: no source exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`,
		}},
		{"Python entry of CUDA", solution(trace.CUDA, "binding.py::kernel", "binding.py", "x", "kernel.cu", run+exportRun),
			[]string{
				"error: binding.py: entry file: language cuda compiles only .cu .cpp .cc .cxx .c (set it to the source that " +
					"exports the function, such as kernel.cu)"}},
		{"cu in cpp", solution(trace.CPP, "kernel.cu::kernel", "kernel.cu", run+exportRun),
			[]string{
				`error: kernel.cu: entry file: language cpp compiles only .cpp .cc .cxx .c (set language = "cuda")`}},
		{"torch", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+module)), nil},
		{"torch with defaults", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu",
			"void run(T a, T b, T c, int d) {}\n"+strings.Replace(module, `"doc"`, `py::arg("d") = 3`, 1))), nil},
		{"torch without module", torch(solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+exportRun)),
			[]string{`error: kernel.cu: no source has a PYBIND11_MODULE (the exports are for tvm-ffi: set binding = "tvm-ffi")`}},
		{"torch with another name", torch(solution(trace.CUDA, "kernel.cu::kernal", "kernel.cu", run+module)),
			[]string{`error: kernel.cu: no m.def("kernal", ...) in the PYBIND11_MODULE (add m.def("kernal", &<function>); to the PYBIND11_MODULE)`}},
		{"no export at all", solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run), []string{"error: kernel.cu: no source " +
			`exports "kernel" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (add TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, <function>);)`}},
		{"pybind", solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", run+module), []string{"error: kernel.cu: no " +
			"source exports \"kernel\" with TVM_FFI_DLL_EXPORT_TYPED_FUNC (for PYBIND11_MODULE, set binding = \"torch\")"}},
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

// FuzzInspect: any C++ source is read without a panic, and every finding has a place inside its source.
func FuzzInspect(f *testing.F) {
	for _, src := range []string{
		"void run(int a) {}" + exportRun,
		"#define A(x, ...) TVM_FFI_DLL_EXPORT_TYPED_FUNC(x##x, __VA_ARGS__) #x\nA(a, b, c)\nA()", "template <class T", "R\"(",
		"#if 0\n#elif 1\n#else\n#endif\n#endif\n#else", "0:", "asm(\"wgmma.\"", "#ifndef A\n#define A\n#include <", "#include \"a/b",
		"#include \"a/b\"\n", "/*", "//\\\n", "'", "1'", "\"\\", "0x7f,0x45,0x4c,0x46", "\"f0VMRf0VMRf0VMR", "#define",
		"extern \"C\" int __tvm_ffi_kernel(x) {", ".version 8 .target sm_1 .entry",
	} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		for _, binding := range []string{"", "torch"} {
			sol := solution(trace.CUDA, "kernel.cu::kernel", "kernel.cu", src)
			sol.Spec.Binding = binding
			for _, found := range slices.Concat(Inspect(sol, small(), nil), Features(sol), Includes(sol, nil)) {
				if lines := 1 + strings.Count(src, "\n"); found.Line > lines || found.Line > 0 && found.Col < 1 || found.Msg == "" {
					t.Errorf("got %+v, want a place in %d lines", found, lines)
				}
			}
		}
	})
}

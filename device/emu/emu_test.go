package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

func TestDevice(t *testing.T) { devicetest.Run(t, Opener()) }

// prelude begins the sources of these tests; the text after it starts on line 2.
const prelude = "#include <tvm/ffi/tvm_ffi.h>\n"

// launcher exports kernel(TensorView) that launches k with the given configuration.
func launcher(config string) string {
	return fmt.Sprintf(`
void kernel(tvm::ffi::TensorView t) { k<<<%s>>>(static_cast<float*>(t.data_ptr()), static_cast<int>(t.numel())); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);
`, config)
}

func solution(files ...string) *trace.Solution {
	sol := &trace.Solution{Name: "s", Spec: trace.BuildSpec{Language: trace.CUDA, EntryPoint: "kernel.cu::kernel"}}
	for i := 0; i < len(files); i += 2 {
		sol.Sources = append(sol.Sources, trace.SourceFile{Path: files[i], Content: files[i+1]})
	}
	return sol
}

var testCache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fisub-emu")
	if err != nil {
		panic(err)
	}
	testCache = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func openTest(t *testing.T, opts device.Options) (*emulator, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	opts.CacheDir = testCache
	opts.Stdout, opts.Stderr = log, log
	e, err := open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return e, log
}

// runKernel builds source, calls kernel with a tensor of the given floats, and returns what it leaves there.
func runKernel(t *testing.T, e *emulator, source string, values []float32) ([]float32, error) {
	t.Helper()
	def := &trace.Definition{}
	def.Inputs.Set("data", trace.TensorSpec{})
	k, err := e.Build(t.Context(), def, solution("kernel.cu", source))
	if err != nil {
		var b *device.BuildError
		if errors.As(err, &b) {
			t.Fatalf("%v\n%s", b, b.Log)
		}
		t.Fatal(err)
	}
	data, _ := binary.Append(nil, binary.LittleEndian, values)
	buf, err := e.Alloc(len(data))
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	if err := buf.Write(data); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = k.Call(ctx, []device.Arg{{Tensor: &device.TensorArg{Buffer: buf, DType: tensor.Float32, Shape: []int{len(values)}}}})
	if rerr := buf.Read(data); rerr != nil {
		t.Fatal(rerr)
	}
	out := make([]float32, len(values))
	if _, derr := binary.Decode(data, binary.LittleEndian, out); derr != nil {
		t.Fatal(derr)
	}
	return out, err
}

func callError(t *testing.T, err error) *device.CallError {
	t.Helper()
	var c *device.CallError
	if !errors.As(err, &c) {
		t.Fatalf("got %v, want a *device.CallError", err)
	}
	return c
}

func TestRewrite(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "k<<<g, b>>>(x);", `::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); },  g, b)(x);`},
		{"template", "k<8, (a>b), foo<3>><<<g, dim3(1,2)>>>(x);",
			`::fisub_emu::launch("k<8,(a>b),foo<3>>", [&](auto... fisub_a) { k<8, (a>b), foo<3>>(fisub_a...); },  g, dim3(1,2))(x);`},
		{"qualified", "if (x) ::a::b<T>::k<<<1, 2>>>();", `if (x) ::fisub_emu::launch("::a::b<T>::k", [&](auto... fisub_a) { ::a::b<T>::k(fisub_a...); },  1, 2)();`},
		{"keyword", "else k<<<1,2>>>();", `else ::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, 1,2)();`},
		{"pointer", "(*f)<<<1,2>>>(3);", `::fisub_emu::launch("(*f)", [&](auto... fisub_a) { (*f)(fisub_a...); }, 1,2)(3);`},
		{"member", "this->f<<<1,2>>>(3);", `::fisub_emu::launch("this->f", [&](auto... fisub_a) { this->f(fisub_a...); }, 1,2)(3);`},
		{"array", "f[i]<<<1,2>>>(3);", `::fisub_emu::launch("f[i]", [&](auto... fisub_a) { f[i](fisub_a...); }, 1,2)(3);`},
		{"shift in the configuration", "k<<<n >> 8, (n >> 2)>>>(p);", `::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); },  n >> 8, (n >> 2))(p);`},
		{"several lines", "k<\n  8><<<\n g,\n b>>>(\nx);", "::fisub_emu::launch(\"k<8>\", [&](auto... fisub_a) { k<\n  8>(fisub_a...); }, \n g,\n b)(\nx);"},
		{"macro", "#define GO(K) \\\n  K<4><<<g, b>>>(x)\nGO(k);",
			"#define GO(K) \\\n  ::fisub_emu::launch(\"K<4>\", [&](auto... fisub_a) { K<4>(fisub_a...); },  g, b)(x)\nGO(k);"},
		{"comments and strings", "// k<<<1,2>>>(x)\n/* __shared__ */ \"k<<<1>>>\" R\"a(k<<<1>>>)\" asm)a\" '<'", "// k<<<1,2>>>(x)\n/* __shared__ */ \"k<<<1>>>\" R\"a(k<<<1>>>)\" asm)a\" '<'"},
		{"operator", "std::ostream& operator<<<T>(int);", "std::ostream& operator<<<T>(int);"},
		{"digits", "int x = 1'000; k<<<1'0, 2>>>();", `int x = 1'000; ::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, 1'0, 2)();`},
		{"static", "void f() { __shared__ float x[4]; }", "void f() { static __thread float x[4]; }"},
		{"static twice", "void f() { static __shared__ int x; }", "void f() { static __thread int x; }"},
		{"aligned", "void f() { __shared__ alignas(16) float x[4]; }", "void f() { alignas(16) static __thread  float x[4]; }"},
		{"dynamic", "void f() { extern __shared__ float x[]; }", "void f() {   float (&x)[232448] = ::fisub_emu::dynamic_shared; }"},
		{"dynamic, aligned, in a namespace", "namespace a { extern __shared__ __align__(16) unsigned char x[][4]; }",
			"namespace a {  static thread_local  unsigned char (&x)[232448][4] = ::fisub_emu::dynamic_shared; }"},
		{"assembly", "asm volatile(\"a;\"\n : \"=r\"(x));", "::fisub_emu::inline_ptx()\n;"},
		{"noinline", "__noinline__ void f(); __attribute__((__noinline__)) void g();", "__attribute__((noinline)) void f(); __attribute__((__noinline__)) void g();"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := rewrite(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if g, w := strings.Count(got, "\n"), strings.Count(c.in, "\n"); g != w {
				t.Errorf("got %d line breaks, want %d", g, w)
			}
		})
	}
	for _, c := range []struct {
		in   string
		line int
		text string
	}{
		{"\n\nk<<<1, 2(x);", 3, "<<< has no matching >>>"},
		{"\nint x = 3 + <<<1,2>>>();", 2, "<<< does not follow the name of a kernel"},
		{"void f() {\nextern __shared__ int x;\n}", 2, "extern __shared__ must have the form extern __shared__ T name[]"},
		{"extern __shared__ int x[], y[];", 1, "extern __shared__ declares several names; give each its own declaration"},
	} {
		_, _, err := rewrite(c.in)
		if err == nil || err.Line != c.line || err.Text != c.text {
			t.Errorf("%q: got %+v, want line %d: %s", c.in, err, c.line, c.text)
		}
	}
	for in, want := range map[string]bool{"atomicAdd(p, 1);": true, "// atomicAdd\nint atomicity, x_atomicAdd;": false, "atomic_ref<int> x;": true} {
		if _, got, _ := rewrite(in); got != want {
			t.Errorf("atomics in %q: got %v, want %v", in, got, want)
		}
	}
}

func FuzzRewrite(f *testing.F) {
	f.Add("k<8><<<g, b>>>(x); extern __shared__ alignas(4) float s[]; asm(\"\"); R\"(\" '")
	f.Add("#define A(x) \\\n x<<<1,2>>>( \nnamespace a { __shared__ alignas(")
	f.Fuzz(func(t *testing.T, in string) {
		out, _, err := rewrite(in)
		if err != nil {
			if lines := 1 + strings.Count(in, "\n"); err.Line < 1 || err.Line > lines {
				t.Errorf("got line %d of %d", err.Line, lines)
			}
			return
		}
		if g, w := strings.Count(out, "\n"), strings.Count(in, "\n"); g != w {
			t.Errorf("got %d line breaks, want %d", g, w)
		}
	})
}

func TestBuildErrors(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	for _, c := range []struct {
		name, text, log string
		sources         []string
	}{
		{"inline PTX", "kernel.cu:4: inline PTX cannot run on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ path)", "kernel.cu:4",
			[]string{"kernel.cu", prelude + "__global__ void k(float* p, int n) {\n  int x = 0;\n  asm volatile(\"mov.u32 %0, %%laneid;\"\n : \"=r\"(x));\n p[0] = x;\n}" + launcher("1, 1")}},
		{"unknown intrinsic", "kernel.cu:2: __nv_secret is not available on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ path)", "__nv_secret",
			[]string{"kernel.cu", prelude + "__global__ void k(float* p, int n) { p[0] = __nv_secret(n); }" + launcher("1, 1")}},
		{"unknown header", "kernel.cu:2: the emulator has no header mma.h", "mma.h", []string{"kernel.cu", prelude + "#include <mma.h>\n"}},
		{"bad launch syntax", "kernel.cu:2: <<< has no matching >>>", "", []string{"kernel.cu", prelude + "void f() { k<<<1, 2; }\n"}},
		{"in a header", "inc/a.cuh:1: ", "inc/a.cuh:1", []string{"kernel.cu", "#include \"inc/a.cuh\"\n", "inc/a.cuh", "int x = ;\n"}},
		{"no launchable source", "no source to compile: none ends in .cu, .cpp, .cc, .cxx or .c", "", []string{"kernel.py", "x"}},
		{"absolute path", `source path "/etc/x.cu" leaves its folder`, "", []string{"/etc/x.cu", "x"}},
		{"parent path", `source path "a/../../x.cu" leaves its folder`, "", []string{"a/../../x.cu", "x"}},
		{"same file twice", "source k.cu occurs twice", "", []string{"k.cu", "x", "./k.cu", "x"}},
		{"file is a folder", "writing the sources: ", "", []string{"a", "x", "a/k.cu", "x"}},
		{"undefined function", "linking: undefined reference to `missing()'", "missing", []string{"kernel.cu", prelude + "void missing();\nvoid kernel() { missing(); }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);\n"}},
		{"too much shared memory", "Z1kPfi uses too much shared data: 0xea60 bytes, 0xc000 are allowed", "0xea60",
			[]string{"kernel.cu", prelude + "__global__ void k(float* p, int n) { __shared__ char a[30000], b[30000]; a[n] = n; b[n] = 2; p[0] = a[1] + b[n]; }" + launcher("1, 1")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := e.Build(t.Context(), nil, solution(c.sources...))
			var b *device.BuildError
			if !errors.As(err, &b) {
				t.Fatalf("got %v, want a *device.BuildError", err)
			}
			if !strings.HasPrefix(b.Text, c.text) || strings.Contains(b.Text, "\n") {
				t.Errorf("got %q, want %q\n%s", b.Text, c.text, b.Log)
			}
			if !strings.Contains(b.Log, c.log) || strings.Contains(b.Log, testCache) {
				t.Errorf("the log lacks %q or names the cache:\n%s", c.log, b.Log)
			}
		})
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("CXX", "")
	t.Setenv("PATH", t.TempDir())
	if _, err := Opener().Open(t.Context(), device.Options{}); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("got %v, want %v", err, ErrNoCompiler)
	}
}

// PTX in code that is not compiled for the emulator, or never emitted, does no harm.
func TestPortablePath(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	out, err := runKernel(t, e, prelude+`
template <class T> __device__ T unused(T x) { asm("bar;"); return x; }
__device__ __forceinline__ int lane() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && !defined(__FISUB_EMU__)
  int x;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
  return x;
#else
  return threadIdx.x % 32;
#endif
}
__global__ void k(float* p, int n) { p[threadIdx.x] = lane(); }
`+launcher("1, n_threads")[:0]+strings.ReplaceAll(launcher("1, N"), "N", "40"), make([]float32, 40))
	if err != nil {
		t.Fatal(err)
	}
	if out[39] != 7 || out[5] != 5 {
		t.Errorf("got lanes %v and %v, want 7 and 5", out[39], out[5])
	}
}

func TestFaultMessages(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	const head = prelude + "__global__ void k(float* p, int n) {\n"
	for _, c := range []struct{ name, body, config, text string }{
		{"past the end", "  if (threadIdx.x == 5 && blockIdx.y == 1) p[n + 1000] = 1;", "dim3(1, 2), 32",
			"kernel.cu:3: kernel k, block (0,1,0), thread (5,0,0): invalid write, 4000 bytes past the end of argument 0 (data)"},
		{"read before the start", "  p[0] = p[-3000];", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid read, 12000 bytes before the start of argument 0 (data)"},
		{"inlined", "  p[0] = __ldg(p - 3000);", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid read, 12000 bytes before the start of argument 0 (data)"},
		{"just past the end", "  p[n] = 1;", "1, 1", "a kernel wrote up to 4 bytes past the end of argument 0 (data)"},
		{"just before the start", "  p[-1] = 1;", "1, 1", "a kernel wrote up to 4 bytes before the start of argument 0 (data)"},
		{"null", "  int* volatile q = nullptr; *q = 3;", "1, 1", "kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid write, a null pointer"},
		{"division", "  volatile int z = 0; p[0] = n / z;", "1, 1", "kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): integer division by zero"},
		{"trap", "  if (threadIdx.x == 3) __trap();", "1, 32", "kernel.cu:3: __trap() (kernel k, block (0,0,0), thread (3,0,0))"},
		{"assert", "  assert(n < 0);", "1, 1", "kernel.cu:3: Assertion `n < 0` failed (kernel k, block (0,0,0), thread (0,0,0))"},
		{"dynamic shared memory", "  extern __shared__ float s[];\n s[4] = n; p[0] = s[4];", "1, 1, 16",
			"kernel k, block (0,0,0): wrote up to 4 bytes past the end of its 16 bytes of dynamic shared memory"},
		{"divergent barrier", "  if (threadIdx.x < 40) __syncthreads();\n  else\n __syncwarp(0x100); ", "1, 64",
			"kernel.cu:5: __syncwarp: the mask 0x00000100 lacks the calling lane 9 (kernel k, block (0,0,0), thread (41,0,0))"},
		{"deadlock", "  if (threadIdx.x < 40)\n __syncthreads();\n  else if (threadIdx.x != 50)\n __shfl_xor_sync(0xffffffffu, n, 1);", "1, 64",
			"deadlock in kernel k, block (0,0,0): threads 0-39 wait at __syncthreads, kernel.cu:4; threads 40-49,51-63 wait at __shfl_xor_sync (mask 0xffffffff), kernel.cu:6; 1 have ended"},
		{"stack", "  volatile char big[200000]; big[n] = 1; big[0] = 2; p[0] = big[1];", "1, 1", "kernel.cu:"},
		{"exit", "  if (n) exit(0);", "1, 1", "the submission ended the process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := runKernel(t, e, head+c.body+"\n}"+launcher(c.config), make([]float32, 64))
			got := callError(t, err)
			if got.Kind != "DeviceFault" || !strings.HasPrefix(got.Text, c.text) || !strings.Contains(got.Log, got.Text) {
				t.Errorf("got  %s: %s\nwant DeviceFault: %s\n%s", got.Kind, got.Text, c.text, got.Log)
			}
			if c.name == "stack" && !strings.Contains(got.Text, "stack overflow") {
				t.Errorf("got %q, want a stack overflow", got.Text)
			}
		})
	}
}

// What is never written must not look like zeros, in a new block as in the first.
func TestPoison(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	out, err := runKernel(t, e, prelude+`
template <int N> __global__ void k2(float* p, int n) {
  __shared__ float s[N];
  extern __shared__ float d[];
  p[2 * blockIdx.x] = s[1];
  p[2 * blockIdx.x + 1] = d[3];
  s[1] = 0;
  d[3] = 0;
}
#define k k2<8>
`+launcher("4, 1, 64"), make([]float32, 8))
	if err != nil {
		t.Fatal(err)
	}
	want := math.Float32frombits(0xcbcbcbcb)
	for i, v := range out {
		if v != want {
			t.Errorf("at %d: got %v, want %v", i, v, want)
		}
	}
}

// A kernel with shared memory, shuffles and enough blocks that several cores take part.
const mixed = prelude + `
__global__ void k(float* p, int n) {
  __shared__ float s[128];
  float v = p[blockIdx.x * 128 + threadIdx.x];
  for (int r = 0; r < 20; ++r) {
    s[threadIdx.x] = v;
    __syncthreads();
    v = __sinf(s[(threadIdx.x + 17) % 128]) * 0.37f + __expf(-v * v) + rsqrtf(1 + v * v);
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o) * 0.001f;
    __syncthreads();
  }
  p[blockIdx.x * 128 + threadIdx.x] = v;
}
`

func TestSameOnAnyNumberOfCores(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	in := make([]float32, 200*128)
	for i := range in {
		in[i] = float32(i%1000)*0.01 - 5
	}
	var want []float32
	for _, workers := range []int{1, 2, 5} {
		e.workers = workers
		got, err := runKernel(t, e, mixed+launcher("n / 128, 128"), in)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) || got[i] == in[i] {
				t.Fatalf("%d workers, at %d: got %v, want %v (input %v)", workers, i, got[i], want[i], in[i])
			}
		}
	}
}

// Float sums by atomicAdd depend on the order of the blocks, which therefore is fixed.
func TestAtomicsKeepTheirOrder(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	const source = prelude + `
__global__ void k(float* p, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i > 0 && i < n) atomicAdd(p, p[i]);
}
`
	in := make([]float32, 20000)
	want := float32(0)
	for i := 1; i < len(in); i++ {
		in[i] = 1 / float32(i)
		want += in[i]
	}
	for range 3 {
		out, err := runKernel(t, e, source+launcher("(n + 63) / 64, 64"), in)
		if err != nil {
			t.Fatal(err)
		}
		if out[0] != want {
			t.Errorf("got %v, want %v", out[0], want)
		}
	}
}

func TestOutputOfKernels(t *testing.T) {
	e, log := openTest(t, device.Options{})
	_, err := runKernel(t, e, prelude+`
#include <cstdio>
__global__ void k(float* p, int n) { printf("thread %d of %d\n", threadIdx.x, n); }
`+launcher("1, 2"), make([]float32, 3))
	if err != nil || log.String() != "thread 0 of 3\nthread 1 of 3\n" {
		t.Errorf("got %q (%v), want two lines", log.String(), err)
	}
	log.Reset()
	_, err = runKernel(t, e, prelude+"__global__ void k(float* p, int n) {}\n"+launcher("0, 1"), make([]float32, 3))
	if want := "kernel k was not launched: grid (0,1,1) is out of range\n"; err != nil || log.String() != want {
		t.Errorf("got %q (%v), want %q", log.String(), err, want)
	}
	log.Reset()
	_, err = runKernel(t, e, prelude+"__global__ void k(float* p, int n) {}\n"+launcher("1, 1, 50000"), make([]float32, 3))
	if want := "kernel k was not launched: 50000 bytes of dynamic shared memory are more than the 49152 that cudaFuncSetAttribute allowed\n"; err != nil || log.String() != want {
		t.Errorf("got %q (%v), want %q", log.String(), err, want)
	}
}

func TestSanitize(t *testing.T) {
	if testing.Short() {
		t.Skip("builds every kernel twice")
	}
	e, _ := openTest(t, device.Options{Sanitize: true})
	const head = prelude + "__global__ void k(float* p, int n) {\n"
	for _, c := range []struct{ name, body, config, kind, text string }{
		{"clean", "  __shared__ float s[64];\n  s[threadIdx.x] = p[threadIdx.x];\n  __syncthreads();\n  p[threadIdx.x] = s[63 - threadIdx.x] + __shfl_down_sync(~0u, 1.0f, 1);",
			"1, 64", "", ""},
		{"clean within a warp", "  __shared__ float s[32];\n  s[threadIdx.x] = p[threadIdx.x];\n  __syncwarp();\n  p[threadIdx.x] = s[31 - threadIdx.x];", "1, 32", "", ""},
		{"out of bounds by one", "  if (threadIdx.x == 7) p[n] = 1;", "1, 32", "SanitizerError", "kernel.cu:3"},
		{"read out of bounds", "  p[0] = p[n + 3];", "1, 1", "SanitizerError", "kernel.cu:3"},
		{"dynamic shared memory", "  extern __shared__ float s[];\n  s[4] = n; p[0] = s[3];", "1, 1, 16", "SanitizerError", "kernel.cu:4"},
		{"local array", "  volatile float a[4] = {};\n  a[n] = 1; p[0] = a[2];", "1, 64", "SanitizerError", "kernel.cu:4"},
		{"shift", "  p[0] = 1 << n;", "1, 1", "SanitizerError", "kernel.cu:3:14: runtime error: shift exponent 64 is too large for 32-bit type 'int'"},
		{"misaligned", "  p[0] = reinterpret_cast<float4*>(p + 1)->x;", "1, 1", "SanitizerError", "kernel.cu:3:"},
		{"race between warps", "  __shared__ float s[64];\n  s[threadIdx.x] = n;\n  p[threadIdx.x] = s[63 - threadIdx.x];", "1, 64", "Race",
			"kernel.cu:5: kernel k, block (0,0,0), thread (32,0,0) reads shared memory that thread (31,0,0) wrote with no barrier between (at kernel.cu:4)"},
		{"race in dynamic shared memory", "  extern __shared__ float s[];\n  s[0] = threadIdx.x;\n  __syncthreads();\n  p[threadIdx.x] = s[0];", "1, 2, 16", "Race",
			"kernel.cu:4: kernel k, block (0,0,0), thread (1,0,0) writes shared memory that thread (0,0,0) wrote with no barrier between (at kernel.cu:4)"},
		{"race of a late write", "  __shared__ float s[64];\n  s[threadIdx.x] = n;\n  __syncthreads();\n  float v = s[63 - threadIdx.x];\n  s[threadIdx.x] = v; p[0] = s[0];", "1, 64", "Race", "kernel.cu:7: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := make([]float32, 64)
			for i := range in {
				in[i] = float32(i)
			}
			out, err := runKernel(t, e, head+c.body+"\n}"+launcher(c.config), in)
			if c.kind == "" {
				if err != nil {
					t.Fatalf("%v\n%s", err, callError(t, err).Log)
				}
				if out[0] == 0 {
					t.Error("the kernel's writes were lost")
				}
				return
			}
			got := callError(t, err)
			if got.Kind != c.kind || !strings.HasPrefix(got.Text, c.text) {
				t.Errorf("got  %s: %s\nwant %s: %s\n%s", got.Kind, got.Text, c.kind, c.text, got.Log)
			}
		})
	}
}

// The two programs of --sanitize must not both change the arguments.
func TestSanitizeRunsInPlaceKernelsOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the kernel twice")
	}
	e, _ := openTest(t, device.Options{Sanitize: true})
	out, err := runKernel(t, e, prelude+"__global__ void k(float* p, int n) { p[threadIdx.x] += 1; }\n"+launcher("1, 8"), make([]float32, 8))
	if err != nil || out[3] != 1 {
		t.Errorf("got %v (%v), want 1", out[3], err)
	}
}

package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/device"
	"fisub/device/devicetest"
	"fisub/internal/longtest"
	"fisub/internal/tensor"
	"fisub/internal/trace"
)

func TestDevice(t *testing.T) {
	longtest.Skip(t, "builds each case's kernel")
	devicetest.Run(t, Opener())
}

// prelude begins the sources of these tests; the text after it starts on line 2.
const prelude = "#include <tvm/ffi/tvm_ffi.h>\n"

// launcher exports kernel(TensorView) that launches k with the given configuration.
func launcher(config string) string {
	return fmt.Sprintf(`
void kernel(tvm::ffi::TensorView t) {
  const int n = static_cast<int>(t.numel());
  k<<<%s>>>(static_cast<float*>(t.data_ptr()), n);
}
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
	err = k.Call(ctx, []device.Arg{{Tensor: &device.TensorArg{Buffer: buf, DType: tensor.Float32,
		Shape: []int{len(values)}}}})
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
		{"plain", "k<<<g, b>>>(x);", `::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, g, b)(x);`},
		{"template", "k<8, (a>b), foo<3>><<<g, dim3(1,2)>>>(x);",
			`::fisub_emu::launch("k<8,(a>b),foo<3>>", [&](auto... fisub_a) { k<8, (a>b), foo<3>>(fisub_a...); }, g, dim3(1,2))(x);`},
		{"qualified", "if (x) ::a::b<T>::k<<<1, 2>>>();",
			`if (x) ::fisub_emu::launch("::a::b<T>::k", [&](auto... fisub_a) { ::a::b<T>::k(fisub_a...); }, 1, 2)();`},
		{"keyword", "else k<<<1,2>>>();", `else ::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, 1,2)();`},
		{"pointer", "(*f)<<<1,2>>>(3);", `::fisub_emu::launch("(*f)", [&](auto... fisub_a) { (*f)(fisub_a...); }, 1,2)(3);`},
		{"member", "this->f<<<1,2>>>(3);",
			`::fisub_emu::launch("this->f", [&](auto... fisub_a) { this->f(fisub_a...); }, 1,2)(3);`},
		{"array", "f[i]<<<1,2>>>(3);", `::fisub_emu::launch("f[i]", [&](auto... fisub_a) { f[i](fisub_a...); }, 1,2)(3);`},
		{"shift in the configuration", "k<<<n >> 8, (n >> 2)>>>(p);",
			`::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, n >> 8, (n >> 2))(p);`},
		{"several lines", "k<\n  8><<<\n g,\n b>>>(\nx);",
			"::fisub_emu::launch(\"k<8>\", [&](auto... fisub_a) { k<\n  8>(fisub_a...); }, \n g,\n b)(\nx);"},
		{"macro", "#define GO(K) \\\n  K<4><<<g, b>>>(x)\nGO(k);",
			"#define GO(K) \\\n  ::fisub_emu::launch(\"K<4>\", [&](auto... fisub_a) { K<4>(fisub_a...); }, g, b)(x)\nGO(k);"},
		{"comments and strings", "// k<<<1,2>>>(x)\n/* __shared__ */ \"k<<<1>>>\" R\"a(k<<<1>>>)\" asm)a\" '<'",
			"// k<<<1,2>>>(x)\n/* __shared__ */ \"k<<<1>>>\" R\"a(k<<<1>>>)\" asm)a\" '<'"},
		{"operator", "std::ostream& operator<<<T>(int);", "std::ostream& operator<<<T>(int);"},
		{"digits", "int x = 1'000; k<<<1'0, 2>>>();",
			`int x = 1'000; ::fisub_emu::launch("k", [&](auto... fisub_a) { k(fisub_a...); }, 1'0, 2)();`},
		{"static", "void f() { __shared__ float x[4]; }", "void f() { static __thread float x[4]; }"},
		{"static twice", "void f() { static __shared__ int x; }", "void f() { static __thread int x; }"},
		{"aligned", "void f() { __shared__ alignas(16) float x[4]; }",
			"void f() { alignas(16) static __thread  float x[4]; }"},
		{"dynamic", "void f() { extern __shared__ float x[]; }",
			"void f() {   float (&x)[232448] = ::fisub_emu::dynamic_shared; }"},
		{"dynamic, aligned, in a namespace", "namespace a { extern __shared__ __align__(16) unsigned char x[][4]; }",
			"namespace a {  static thread_local  unsigned char (&x)[232448][4] = ::fisub_emu::dynamic_shared; }"},
		{"assembly", "asm volatile(\"a;\"\n : \"=r\"(x));", "::fisub_emu::inline_ptx()\n;"},
		{"noinline", "__noinline__ void f(); __attribute__((__noinline__)) void g();",
			"__attribute__((noinline)) void f(); __attribute__((__noinline__)) void g();"},
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
	for in, want := range map[string]bool{"atomicAdd(p, 1);": true, "// atomicAdd\nint atomicity, x_atomicAdd;": false,
		"atomic_ref<int> x;": true} {
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
	for _, c := range []struct {
		name, text, log string
		sources         []string
	}{
		{"inline PTX",
			"kernel.cu:4: inline PTX cannot run on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ path)",
			"kernel.cu:4",
			[]string{"kernel.cu",
				prelude +
					"__global__ void k(float* p, int n) {\n  int x = 0;\n  asm volatile(\"mov.u32 %0, %%laneid;\"\n : " +
					"\"=r\"(x));\n p[0] = x;\n}" + launcher("1, 1")}},
		{"unknown intrinsic",
			"kernel.cu:2: __nv_secret is not available on the emulator (guard it with #ifndef __FISUB_EMU__ and give a C++ " +
				"path)", "__nv_secret",
			[]string{"kernel.cu", prelude + "__global__ void k(float* p, int n) { p[0] = __nv_secret(n); }" + launcher("1, 1")}},
		{"unknown header", "kernel.cu:2: the emulator has no header mma.h", "mma.h",
			[]string{"kernel.cu", prelude + "#include <mma.h>\n"}},
		{"bad launch syntax", "kernel.cu:2: <<< has no matching >>>", "",
			[]string{"kernel.cu", prelude + "void f() { k<<<1, 2; }\n"}},
		{"in a header", "inc/a.cuh:1: ", "inc/a.cuh:1", []string{"kernel.cu", "#include \"inc/a.cuh\"\n", "inc/a.cuh",
			"int x = ;\n"}},
		{"no launchable source", "no source to compile: none ends in .cu, .cpp, .cc, .cxx or .c", "",
			[]string{"kernel.py", "x"}},
		{"absolute path", `source path "/etc/x.cu" leaves its folder`, "", []string{"/etc/x.cu", "x"}},
		{"parent path", `source path "a/../../x.cu" leaves its folder`, "", []string{"a/../../x.cu", "x"}},
		{"same file twice", "source k.cu occurs twice", "", []string{"k.cu", "x", "./k.cu", "x"}},
		{"file is a folder", "writing the sources: ", "", []string{"a", "x", "a/k.cu", "x"}},
		{"undefined function", "linking: undefined reference to `missing()'", "missing",
			[]string{"kernel.cu",
				prelude + "void missing();\nvoid kernel() { missing(); }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);\n"}},
		{"too much shared memory", "Z1kPfi uses too much shared data: 0xea60 bytes, 0xc000 are allowed", "0xea60",
			[]string{"kernel.cu",
				prelude +
					"__global__ void k(float* p, int n) { __shared__ char a[30000], b[30000]; a[n] = n; b[n] = 2; p[0] = a[n + 1] " +
					"+ b[n + 1]; }" + launcher("1, 1")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, _ := openTest(t, device.Options{})
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

// A compiler that the machine fails says nothing of the solution.
func TestCompilerOfAFailingMachine(t *testing.T) {
	for _, c := range []struct{ name, does, want string }{
		{"full disk", "echo 'k.cu:1:1: fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1",
			"No space left on device"},
		{"no memory for its child", "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
			"Killed signal terminated program cc1plus"},
		{"ended by a signal", "kill -KILL $$", "signal: killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "c++")
			text := "#!/bin/sh\ncase $1 in --version) echo fake 1; exit;; esac\n" + c.does + "\n"
			if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			cxx := &compiler{command: []string{script}, version: "fake"}
			_, err := cxx.build(t.Context(), t.TempDir(), solution("k.cu", "x"), bare)
			var build *device.BuildError
			if err == nil || errors.As(err, &build) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %T %v, want an error of the machine with %q", err, err, c.want)
			}
		})
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
`+launcher("1, n"), make([]float32, 40))
	if err != nil {
		t.Fatal(err)
	}
	if out[39] != 7 || out[5] != 5 {
		t.Errorf("got lanes %v and %v, want 7 and 5", out[39], out[5])
	}
}

func TestFaultMessages(t *testing.T) {
	const head = prelude + "__global__ void k(float* p, int n) {\n"
	for _, c := range []struct{ name, body, config, text string }{
		{"past the end", "  if (threadIdx.x == 5 && blockIdx.y == 1) p[n + 1000] = 1;", "dim3(1, 2), 32",
			"kernel.cu:3: kernel k, block (0,1,0), thread (5,0,0): invalid write, 4000 bytes past the end of argument 0 (data)"},
		{"read before the start", "  p[0] = p[-3000];", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid read, 12000 bytes before the start of argument 0 " +
				"(data)"},
		{"inlined", "  p[0] = __ldg(p - 3000);", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid read, 12000 bytes before the start of argument 0 (data)"},
		{"at the guard", "  p[n + 1] = 1;", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid write, 4 bytes past the end of argument 0 (data)"},
		{"just past the end", "  p[n] = 1;", "1, 1", "a kernel wrote up to 4 bytes past the end of argument 0 (data)"},
		{"just before the start", "  p[-1] = 1;", "1, 1",
			"a kernel wrote up to 4 bytes before the start of argument 0 (data)"},
		{"null", "  *reinterpret_cast<int*>(static_cast<size_t>(n - 63)) = 3;", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): invalid write, a null pointer"},
		{"division", "  volatile int z = 0; p[0] = n / z;", "1, 1",
			"kernel.cu:3: kernel k, block (0,0,0), thread (0,0,0): integer division by zero"},
		{"trap", "  if (threadIdx.x == 3) __trap();", "1, 32",
			"kernel.cu:3: __trap() (kernel k, block (0,0,0), thread (3,0,0))"},
		{"assert", "  assert(n < 0);", "1, 1",
			"kernel.cu:3: Assertion `n < 0` failed (kernel k, block (0,0,0), thread (0,0,0))"},
		{"dynamic shared memory", "  extern __shared__ float s[];\n s[4] = n; p[0] = s[4];", "1, 1, 16",
			"kernel k, block (0,0,0): wrote up to 4 bytes past the end of its 16 bytes of dynamic shared memory"},
		{"divergent barrier", "  if (threadIdx.x < 40) __syncthreads();\n  else\n __syncwarp(0x100); ", "1, 64",
			"kernel.cu:5: __syncwarp: the mask 0x00000100 lacks the calling lane 9 (kernel k, block (0,0,0), thread (41,0,0))"},
		{"deadlock",
			"  if (threadIdx.x < 40)\n __syncthreads();\n  else if (threadIdx.x != 50)\n __shfl_xor_sync(0xffffffffu, n, 1);",
			"1, 64",
			"deadlock in kernel k, block (0,0,0): threads 0-39 wait at __syncthreads, kernel.cu:4; threads 40-49,51-63 wait " +
				"at __shfl_xor_sync (mask 0xffffffff), kernel.cu:6; 1 have ended"},
		{"stack", "  volatile char big[700000]; big[n] = 1; big[0] = 2; p[0] = big[1];", "1, 1", "kernel.cu:"},
		{"exit", "  if (n) exit(0);", "1, 1", "the submission ended the process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, _ := openTest(t, device.Options{})
			_, err := runKernel(t, e, head+c.body+"\n}"+launcher(c.config), make([]float32, 63))
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
	in := make([]float32, 1<<20)
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
	if want := "kernel k was not launched: 50000 bytes of dynamic shared memory are more than the 49152 that " +
		"cudaFuncSetAttribute allowed\n"; err != nil || log.String() != want {
		t.Errorf("got %q (%v), want %q", log.String(), err, want)
	}
}

func TestSanitize(t *testing.T) {
	longtest.Skip(t, "builds every kernel twice")
	const head = prelude + "__global__ void k(float* p, int n) {\n"
	for _, c := range []struct{ name, body, config, kind, text string }{
		{"clean",
			"  __shared__ float s[64];\n  s[threadIdx.x] = threadIdx.x < 63 ? p[threadIdx.x] : 0;\n  __syncthreads();\n  if " +
				"(threadIdx.x < 63) p[threadIdx.x] = s[63 - threadIdx.x] + 1 + threadIdx.x % 2;",
			"1, 64", "", ""},
		{"clean within a warp",
			"  __shared__ float s[32];\n  s[threadIdx.x] = p[threadIdx.x];\n  __syncwarp();\n  p[threadIdx.x] = s[31 - " +
				"threadIdx.x];", "1, 32", "", ""},
		{"out of bounds by one", "  if (threadIdx.x == 7) p[n] = 1;", "1, 32", "SanitizerError",
			"kernel.cu:3: kernel k, block (0,0,0), thread (7,0,0): invalid write, just past the end of argument 0 (data)"},
		{"read out of bounds", "  p[0] = p[n];", "1, 1", "SanitizerError", "kernel.cu:3: "},
		{"dynamic shared memory", "  extern __shared__ float s[];\n  s[4] = n; p[0] = s[3];", "1, 1, 16", "SanitizerError",
			"kernel.cu:4: kernel k, block (0,0,0), thread (0,0,0): invalid write, past the end of dynamic shared memory"},
		{"local array", "  volatile float a[4] = {};\n  a[n] = 1; p[0] = a[2];", "1, 64", "SanitizerError", "kernel.cu:4:"},
		{"local array through a pointer",
			"  volatile float a[4] = {};\n  volatile float* q = a + n / 60; q[3] = 1; p[0] = a[2];", "1, 64", "SanitizerError",
			"kernel.cu:4:"},
		{"shift", "  p[0] = 1 << n;", "1, 1", "SanitizerError",
			"kernel.cu:3:12: runtime error: shift exponent 63 is too large for 32-bit type 'int'"},
		{"misaligned", "  p[0] = reinterpret_cast<float4*>(p + 1)->x;", "1, 1", "SanitizerError", "kernel.cu:3:"},
		{"race between warps",
			"  __shared__ float s[64];\n  s[threadIdx.x] = n;\n  if (threadIdx.x < 40) p[threadIdx.x] = s[63 - threadIdx.x];",
			"1, 64", "Race",
			"kernel.cu:4: kernel k, block (0,0,0), thread (32,0,0) writes shared memory that thread (31,0,0) read with no " +
				"barrier between (at kernel.cu:5)"},
		{"race in dynamic shared memory",
			"  extern __shared__ float s[];\n  s[0] = threadIdx.x;\n  __syncthreads();\n  p[threadIdx.x] = s[0];", "1, 2, 16",
			"Race",
			"kernel.cu:4: kernel k, block (0,0,0), thread (1,0,0) writes shared memory that thread (0,0,0) wrote with no " +
				"barrier between (at kernel.cu:4)"},
		{"race of a late write",
			"  __shared__ float s[64];\n  s[threadIdx.x] = n;\n  __syncthreads();\n  float v = s[63 - threadIdx.x];\n  " +
				"s[threadIdx.x] = v; p[0] = s[0];", "1, 64", "Race", "kernel.cu:6: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, _ := openTest(t, device.Options{Sanitize: true})
			in := make([]float32, 63)
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
	longtest.Skip(t, "builds the kernel twice")
	e, _ := openTest(t, device.Options{Sanitize: true})
	out, err := runKernel(t, e, prelude+"__global__ void k(float* p, int n) { p[threadIdx.x] += 1; }\n"+launcher("1, 8"),
		make([]float32, 8))
	if err != nil || out[3] != 1 {
		t.Errorf("got %v (%v), want 1", out[3], err)
	}
}

func TestIntrinsics(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	type check struct {
		expression string
		want       float64
	}
	next := float64(math.Nextafter32(1, 2))
	checks := []check{
		{"__brev(1u) == 0x80000000u", 1}, {"__brevll(2ull) == 1ull << 62", 1},
		{"__byte_perm(0x33221100u, 0x77665544u, 0x7531u) == 0x77553311u", 1},
		{"__byte_perm(0x80u, 0u, 0x8888u) == 0xffffffffu", 1},
		{"__funnelshift_l(0x80000000u, 1u, 1u)", 3}, {"__funnelshift_r(0u, 1u, 4u) == 0x10000000u", 1},
		{"__umulhi(0x80000000u, 6u)", 3}, {"__mulhi(-1, 1)", -1}, {"__mul24(-3, 5)", -15}, {"__umul24(0x1000003u, 2u)", 6},
		{"__umul64hi(1ull << 63, 4ull)", 2}, {"__clz(1)", 31}, {"__clz(0)", 32}, {"__clzll(1)", 63}, {"__popc(0xf0fu)", 8},
		{"__popcll(~0ull)", 64}, {"__ffs(8)", 4}, {"__ffs(0)", 0}, {"__sad(3, -4, 1u)", 8},
		{"__dp4a(0x01020304, 0x01010101, 10)", 20},
		{"__float2int_rn(2.5f)", 2}, {"__float2int_rn(3.5f)", 4}, {"__float2int_rz(-2.9f)", -2}, {"__float2int_ru(2.1f)", 3},
		{"__float2int_rd(-2.1f)", -3}, {"__float2int_rn(1e20f)", math.MaxInt32}, {"__float2int_rn(-1e20f)", math.MinInt32},
		{"__float2int_rn(NAN)", 0}, {"__float2uint_rn(-5.0f)", 0}, {"__float2uint_rz(1e20f) == 0xffffffffu", 1},
		{"__float2uint_rz(3e9f) == 3000000000u", 1}, {"__float2ll_rn(1e30f) == 0x7fffffffffffffffll", 1},
		{"__float2ull_rn(1e30f) == ~0ull", 1},
		{"__float2int_rn(-2147483648.0f) == (-2147483647 - 1)", 1},
		{"__fadd_rn(1.0f, 0x1p-30f)", 1}, {"__fadd_rz(1.0f, 0x1p-30f)", 1}, {"__fadd_ru(1.0f, 0x1p-30f)", next},
		{"__fadd_rd(1.0f, 0x1p-30f)", 1},
		{"__fadd_rd(1.0f, -0x1p-30f) < 1.0f", 1}, {"__fadd_ru(0x1p-100f, 1.0f)", next}, {"__fsub_rn(3.0f, 1.0f)", 2},
		{"__fmul_ru(0x1.000002p0f, 0x1.000002p0f) > __fmul_rd(0x1.000002p0f, 0x1.000002p0f)", 1},
		{"__fmaf_rn(2.0f, 3.0f, 4.0f)", 10},
		{"__fmaf_ru(1.0f, 1.0f, 0x1p-60f)", next}, {"__fdiv_rz(1.0f, 3.0f) < __fdiv_ru(1.0f, 3.0f)", 1},
		{"__frcp_rn(4.0f)", 0.25},
		{"__fsqrt_rn(9.0f)", 3}, {"__fsqrt_ru(2.0f) > __fsqrt_rd(2.0f)", 1}, {"rsqrtf(4.0f)", 0.5}, {"__saturatef(2.0f)", 1},
		{"__saturatef(NAN)", 0}, {"__fdividef(6.0f, 4.0f)", 1.5}, {"__expf(0.0f)", 1}, {"exp2f(3.0f)", 8},
		{"__log2f(8.0f)", 3},
		{"__powf(2.0f, 5.0f)", 32}, {"__tanhf(0.0f)", 0}, {"__cosf(0.0f)", 1}, {"__sinf(0.0f)", 0},
		{"__float_as_int(1.0f) == 0x3f800000", 1}, {"__uint_as_float(0x40000000u)", 2}, {"__int_as_float(0x3f000000)", 0.5},
		{"__hiloint2double(0x3ff00000, 0)", 1}, {"__double2hiint(1.0) == 0x3ff00000", 1},
		{"min(3, 4)", 3}, {"max(3u, 4u)", 4}, {"max(3.0f, NAN)", 3}, {"min(2.0, 1.0f)", 1}, {"max(-1ll, 1ll)", 1},
		{"max(1, 2u)", 2},
		{"make_float4(1, 2, 3, 4).w", 4}, {"make_uchar4(1, 2, 3, 255).w", 255}, {"sizeof(float3)", 12},
		{"alignof(float4)", 16}, {"alignof(int2)", 8}, {"sizeof(double2)", 16},
		{"__half2float(__hadd(__float2half(1.5f), __float2half(2.0f)))", 3.5},
		{"static_cast<float>(__float2half(65520.0f)) == INFINITY", 1},
		{"static_cast<float>(__float2half_rz(65535.0f))", 65504}, {"__low2float(__floats2half2_rn(1.0f, 2.0f))", 1},
		{"__half22float2(__hmul2(__floats2half2_rn(1.0f, 2.0f), __float2half2_rn(3.0f))).y", 6},
		{"__half_as_ushort(__float2half(1.0f))", 0x3c00},
		{"__bfloat162float(__float2bfloat16_ru(0x1.01p0f + 0x1p-20f))", 1 + math.Ldexp(1, -6) - math.Ldexp(1, -7)},
		{"__bfloat162float(__float2bfloat16_rz(1.999f)) < 1.999f", 1}, {"float(__nv_bfloat16(3) / __nv_bfloat16(2))", 1.5},
		{"__bfloat1622float2(__floats2bfloat162_rn(1.0f, -2.0f)).y", -2},
		{"__heq(__float2bfloat16(1.0f), __float2bfloat16(1.0f))", 1},
		{"__hisnan(__float2half(NAN))", 1}, {"float(__hmax(__float2half(1.0f), __float2half(2.0f)))", 2},
		{"__bfloat16_as_ushort(__float2bfloat16(-1.0f))", 0xbf80},
		{"float(__nv_fp8_e4m3(300.0f))", 288}, {"float(__nv_fp8_e4m3(1e6f))", 448},
		{"float(__nv_fp8_e4m3(0x1p-9f))", math.Ldexp(1, -9)},
		{"float(__nv_fp8_e4m3(0x1p-10f))", 0}, {"float(__nv_fp8_e5m2(-1e9f))", -57344}, {"float(__nv_fp8_e5m2(1.125f))", 1},
		{"float(__nv_fp8_e4m3(-1.0625f))", -1}, {"__nv_cvt_float_to_fp8(1e6f, __NV_NOSAT, __NV_E5M2)", 0x7c},
		{"isnan(float(__nv_fp8_e4m3(NAN)))", 1}, {"double(__nv_fp8_e4m3(-1.5))", -1.5}, {"bool(__nv_fp8_e4m3(-0.0f))", 0},
		{"bool(__nv_fp8_e5m2(3))", 1},
		{"__nv_cvt_double_to_fp8(1.0625 + 1e-12, __NV_SATFINITE, __NV_E4M3)", 0x39},
		{"__nv_cvt_halfraw_to_fp8(__float2half(2.0f), __NV_SATFINITE, __NV_E4M3)", 0x40},
		{"__nv_cvt_bfloat16raw_to_fp8(__float2bfloat16(-2.0f), __NV_SATFINITE, __NV_E4M3)", 0xc0},
		{"__nv_cvt_float2_to_fp8x2(make_float2(1.0f, 2.0f), __NV_SATFINITE, __NV_E4M3)", 0x4038},
		{"__nv_cvt_halfraw2_to_fp8x2(__floats2half2_rn(1.0f, 2.0f), __NV_SATFINITE, __NV_E5M2)", 0x403c},
		{"__nv_cvt_bfloat16raw2_to_fp8x2(__floats2bfloat162_rn(1.0f, 2.0f), __NV_SATFINITE, __NV_E4M3)", 0x4038},
		{"__half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(0x4038, __NV_E4M3))).y", 2},
		{"float2(__nv_fp8x2_e4m3(make_float2(3.0f, -4.0f))).y", -4},
		{"__low2float(__half2(__nv_fp8x2_e5m2(__floats2bfloat162_rn(3.0f, -4.0f))))", 3}, {"sizeof(__nv_fp8x4_e4m3)", 4},
		{"float4(__nv_fp8x4_e4m3(make_float4(1.0f, 2.0f, 3.0f, -4.0f))).w", -4},
		{"float4(__nv_fp8x4_e4m3(make_float4(1.0f, 2.0f, 3.0f, -4.0f))).z", 3},
		{"float4(__nv_fp8x4_e5m2(__floats2half2_rn(1.0f, 2.0f), __floats2half2_rn(3.0f, 5.0f))).z", 3},
		{"__nv_fp8x4_e4m3(make_float4(1.0f, 2.0f, 0.0f, 0.0f)).__x", 0x4038},
	}
	var body strings.Builder
	body.WriteString("#include <cuda_fp8.h>\n" + prelude + "__global__ void k(float* p, int n) {\n  int i = 0;\n")
	for _, c := range checks {
		fmt.Fprintf(&body, "  p[i++] = static_cast<float>(%s);\n", c.expression)
	}
	// Every fp8 code must survive the way to float and back.
	body.WriteString(`
  int bad = 0;
  for (int c = 0; c < 256; ++c) {
    __nv_fp8_e4m3 x;
    __nv_fp8_e5m2 y;
    x.__x = y.__x = static_cast<unsigned char>(c);
    const float fx = float(x), fy = float(y);
    if (fx == fx && __nv_fp8_e4m3(fx).__x != c) ++bad;
    if (fy == fy && fabsf(fy) != INFINITY && __nv_fp8_e5m2(fy).__x != c) ++bad;
  }
  p[i++] = static_cast<float>(bad);
}
`)
	out, err := runKernel(t, e, body.String()+launcher("1, 1"), make([]float32, len(checks)+1))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range checks {
		if float64(out[i]) != float64(float32(c.want)) {
			t.Errorf("%s: got %v, want %v", c.expression, out[i], c.want)
		}
	}
	if out[len(checks)] != 0 {
		t.Errorf("%v fp8 codes changed on the way to float and back", out[len(checks)])
	}
}

func TestThreadsOfABlock(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	for _, c := range []struct {
		name, body, config string
		n                  int
		want               func(i int) float32
	}{
		{"spin lock", `
  __shared__ int lock, total;
  if (threadIdx.x == 0) lock = total = 0;
  __syncthreads();
  while (atomicCAS(&lock, 0, 1) != 0) {}
  const int seen = total;
  __nanosleep(10);
  total = seen + 1;
  atomicExch(&lock, 0);
  __syncthreads();
  p[threadIdx.x] = total;`, "1, 96", 96, func(int) float32 { return 96 }},
		{"active mask", `
  if (threadIdx.x % 3 == 0) p[threadIdx.x] = __popc(__activemask());
  else p[threadIdx.x] = __shfl_sync(__activemask(), 100.0f, 1);`, "1, 32", 32, func(i int) float32 { return []float32{11, 100, 100}[i%3] }},
		{"reductions", `
  const int v = static_cast<int>(threadIdx.x) - 10;
  int all = 7;
  const unsigned same = __match_all_sync(~0u, 5, &all);
  p[threadIdx.x] = __reduce_add_sync(~0u, v) + 1000 * __reduce_min_sync(~0u, v) + 100 * __reduce_max_sync(~0u, v) +
                   static_cast<float>(__reduce_xor_sync(~0u, 1u << threadIdx.x) == ~0u) + (same == ~0u) + all;`, "1, 32", 32,
			func(int) float32 { return 176 - 10000 + 2100 + 1 + 1 + 1 }},
		{"ended lanes", `
  if (threadIdx.x % 2) return;
  p[threadIdx.x] = __shfl_down_sync(~0u, static_cast<float>(threadIdx.x), 2, 8);`, "1, 32", 32, func(i int) float32 {
			switch {
			case i%2 == 1:
				return 0
			case i%8 == 6:
				return float32(i)
			}
			return float32(i + 2)
		}},
		{"two dimensions", `
  p[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * (blockIdx.x + gridDim.x * blockIdx.y))] =
      threadIdx.x + 10 * threadIdx.y + 100 * blockIdx.x + 1000 * blockIdx.y + 10000 * blockDim.y + 100000 * gridDim.y;`,
			"dim3(2, 2), dim3(3, 4)", 48, func(i int) float32 {
				return float32(i%3 + 10*(i/3%4) + 100*(i/12%2) + 1000*(i/24) + 40000 + 200000)
			}},
		{"vector loads and stores", `
  const float4 v = __ldcs(reinterpret_cast<const float4*>(p) + threadIdx.x);
  __stcs(reinterpret_cast<float4*>(p) + threadIdx.x, make_float4(v.w + 1, v.z + 2, v.y + 3, threadIdx.x));`, "1, 2", 8,
			func(i int) float32 { return []float32{1, 2, 3, 0, 1, 2, 3, 1}[i] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := runKernel(t, e, prelude+"__global__ void k(float* p, int n) {"+c.body+"\n}"+launcher(c.config),
				make([]float32, c.n))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range out {
				if want := c.want(i); v != want {
					t.Errorf("at %d: got %v, want %v", i, v, want)
				}
			}
		})
	}
}

func TestHostAPI(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	out, err := runKernel(t, e, prelude+`#include <tvm/ffi/extra/c_env_api.h>
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter;
__global__ void k(float* p, const float* q, const float* r) {
  p[threadIdx.x] = table[threadIdx.x] + q[threadIdx.x] + r[threadIdx.x];
  counter = 5;
}
void kernel(tvm::ffi::TensorView t) {
  float* p = static_cast<float*>(t.data_ptr());
  float *q = nullptr, host[4] = {10, 20, 30, 40};
  TVM_FFI_ICHECK_EQ(cudaMalloc(&q, sizeof host), cudaSuccess);
  TVM_FFI_ICHECK_EQ(cudaMemcpyAsync(q, host, sizeof host, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  const float two = 200;
  TVM_FFI_ICHECK_EQ(cudaMemcpyToSymbol(table, &two, sizeof two, 4), cudaSuccess);
  TVM_FFI_ICHECK_EQ(cudaMemcpyToSymbol(table, &two, sizeof two, 16), cudaErrorInvalidValue);
  tvm::ffi::Tensor scratch = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, {2, 2}, t.dtype(), t.device());
  TVM_FFI_ICHECK_EQ(scratch.stride(0), 2);
  TVM_FFI_ICHECK_EQ(cudaMemset(scratch.data_ptr(), 0, 16), cudaSuccess);
  dim3 gridDim(1), blockDim(4);
  k<<<gridDim, blockDim>>>(p, q, static_cast<float*>(scratch.data_ptr()));
  TVM_FFI_ICHECK_EQ(cudaFree(q), cudaSuccess);
  TVM_FFI_ICHECK_EQ(cudaFree(q), cudaErrorInvalidValue);
  TVM_FFI_ICHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  TVM_FFI_ICHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
  int value = 0;
  TVM_FFI_ICHECK_EQ(cudaMemcpyFromSymbol(&value, counter, sizeof value), cudaSuccess);
  p[4] = value;
  TVM_FFI_ICHECK_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  p[5] = value;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);
`, make([]float32, 6))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{11, 220, 33, 44, 5, 132} {
		if out[i] != want {
			t.Errorf("at %d: got %v, want %v", i, out[i], want)
		}
	}
}

func TestOddArguments(t *testing.T) {
	e, _ := openTest(t, device.Options{})
	k, err := e.Build(t.Context(), nil, solution("kernel.cu",
		prelude+"void kernel(tvm::ffi::TensorView a, tvm::ffi::TensorView b) {\n"+
			"  TVM_FFI_CHECK(a.data_ptr() == b.data_ptr(), ValueError) << \"different "+
			"memory\";\n}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(kernel, kernel);\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Alloc(16)
	if err != nil {
		t.Fatal(err)
	}
	a := device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{4}}}
	if err := k.Call(t.Context(), []device.Arg{a, a}); err != nil {
		t.Errorf("one buffer as two arguments: %v", err)
	}
	large := device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{5}}}
	if err := k.Call(t.Context(), []device.Arg{a, large}); err == nil ||
		!strings.Contains(err.Error(), "exceeds the buffer's 16 bytes") {
		t.Errorf("got %v, want an error about the buffer's size", err)
	}
	negative := device.Arg{Tensor: &device.TensorArg{Buffer: b, DType: tensor.Float32, Shape: []int{-1}}}
	if err := k.Call(t.Context(), []device.Arg{a, negative}); err == nil {
		t.Error("a negative extent: got no error")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := k.Call(t.Context(), []device.Arg{a, a}); err == nil {
		t.Error("a closed buffer: got no error")
	}
	if err := errors.Join(b.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

// BenchmarkDecode calls the repository's GDN decode kernel; a call includes the start of its process.
func BenchmarkDecode(b *testing.B) {
	var sources []string
	for _, name := range []string{"kernel.cu", "decode.cuh", "table.cuh"} {
		source, err := os.ReadFile("../../solution/cuda/" + name)
		if err != nil {
			b.Fatal(err)
		}
		sources = append(sources, name, string(source))
	}
	e, err := open(b.Context(), device.Options{CacheDir: testCache})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	k, err := e.Build(b.Context(), nil, solution(sources...))
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("building took %v", time.Since(start))
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			var args []device.Arg
			add := func(d tensor.DType, shape ...int) {
				n, _ := tensor.Elements(shape)
				bytes, _ := d.Bytes(n)
				buf, err := e.Alloc(bytes)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { buf.Close() })
				if err := buf.Fill(0x3c); err != nil {
					b.Fatal(err)
				}
				args = append(args, device.Arg{Tensor: &device.TensorArg{Buffer: buf, DType: d, Shape: shape}})
			}
			add(tensor.BFloat16, batch, 1, 4, 128)
			add(tensor.BFloat16, batch, 1, 4, 128)
			add(tensor.BFloat16, batch, 1, 8, 128)
			add(tensor.Float32, batch, 8, 128, 128)
			add(tensor.Float32, 8)
			add(tensor.BFloat16, batch, 1, 8)
			add(tensor.Float32, 8)
			add(tensor.BFloat16, batch, 1, 8)
			args = append(args, device.Arg{})
			add(tensor.BFloat16, batch, 1, 8, 128)
			add(tensor.Float32, batch, 8, 128, 128)
			for b.Loop() {
				if err := k.Call(b.Context(), args); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package pyworker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/device/nvcc"
	"fisub/device/vgpu/vgputest"
	"fisub/internal/cache"
	"fisub/internal/longtest"
	"fisub/internal/trace"
)

// virtualCommand is command with the virtual GPU and a Python that also has the package.
func virtualCommand(t *testing.T, name string) worker.Command {
	t.Helper()
	c := command(t)
	if err := exec.Command(c.Args[0], "-c", "import "+name).Run(); err != nil {
		longtest.Missing(t, "python", fmt.Errorf("no %s: %w", name, err))
	}
	if err := vgputest.Library(); err != nil {
		t.Fatal(err)
	}
	return command(t)
}

// compilerCommand is virtualCommand on a machine with nvcc.
func compilerCommand(t *testing.T, name string) worker.Command {
	t.Helper()
	root, err := cache.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nvcc.Find(root); err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	return virtualCommand(t, name)
}

const tritonHead = `import torch
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, c, BLOCK: tl.constexpr, BEHIND: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n) * c
    tl.store(y + i, value, mask=i < n + BEHIND)

@triton.jit
def both(a, b):
    return a + b

@triton.jit
def product(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))

@triton.jit
def many(x, sums, largest, counter, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(sums + i, tl.associative_scan(v, 0, both))
    tl.store(largest, tl.max(v, 0))
    tl.atomic_add(counter + i * 0, 1)
    if tl.program_id(0) == 1:
        tl.device_print("value", v)

`

func TestTriton(t *testing.T) {
	client := open(t, virtualCommand(t, "triton"))
	const (
		scaled = "    scale[(1,)](x, y, x.numel(), c, BLOCK=4, BEHIND=0)\n"
		total  = "    total.fill_(x.sum())\n"
		tune   = "@triton.autotune(configs=[triton.Config({'BLOCK': b, 'WRONG': w}, num_warps=1) for b, w in CONFIGS], key=['n'])\n" +
			"@triton.jit\ndef tuned(x, y, n, c, BLOCK: tl.constexpr, WRONG: tl.constexpr):\n" +
			"    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n" +
			"    tl.store(y + i, tl.load(x + i, mask=i < n) * (c + WRONG), mask=i < n)\n" +
			"def run(x, c, y, total):\n    tuned[lambda meta: (triton.cdiv(3, meta['BLOCK']),)](x, y, 3, c)\n"
	)
	for _, tc := range []pyCall{
		{"right", "def run(x, c, y, total):\n" + scaled + total, "", "", []float32{5, -10, 150}},
		{"on a device", "def run(x, c, y, total):\n    assert x.is_cuda and x.device == torch.device('cuda:0')\n" +
			"    assert torch.cuda.get_device_capability() == (10, 0) and torch.zeros(3, device='cuda').is_cuda\n" +
			"    z = torch.empty_like(x, device='cuda')\n    scale[(1,)](x.to('cuda'), z, 3, c, BLOCK=4, BEHIND=0)\n" +
			"    assert not x.cpu().is_cuda and not torch.zeros(3).is_cuda\n    y.copy_(z.cpu())\n" + total, "", "",
			[]float32{5, -10, 150}},
		{"past the end", "def run(x, c, y, total):\n    scale[(1,)](x, y, x.numel(), c, BLOCK=8, BEHIND=2)\n", worker.Call,
			"DeviceFault: main.py:9:20: kernel scale, block (0,0,0), thread (3,0,0): invalid write of 4 bytes at", nil},
		{"past the end of its own", "def run(x, c, y, total):\n    z = torch.empty(3, device='cuda')\n" +
			"    scale[(1,)](x, z, 3, c, BLOCK=8, BEHIND=2)\n", worker.Call, "0 bytes past the end of the tensor at y", nil},
		{"caught", "def run(x, c, y, total):\n    try:\n        scale[(1,)](x, y, 3, c, BLOCK=8, BEHIND=2)\n" +
			"    except:\n        y.copy_(x * c)\n", worker.Call, "DeviceFault: ", nil},
		{"by an address", "def run(x, c, y, total):\n    z = torch.empty(3, device='cuda')\n" +
			"    by[(1,)](x, torch.tensor([z.data_ptr()], device='cuda'))\n    y.copy_(z)\n" + total +
			"@triton.jit\ndef by(x, p):\n    i = tl.arange(0, 4)\n    z = tl.load(p).to(tl.pointer_type(tl.float32))\n" +
			"    tl.store(z + i, tl.load(x + i, mask=i < 3) * 2, mask=i < 3)\n", "", "", []float32{2, -4, 60}},
		{"on the host", "def run(x, c, y, total):\n    scale[(1,)](x.cpu(), y, 3, c, BLOCK=4, BEHIND=0)\n", worker.Call,
			"ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)", nil},
		{"too much shared memory", "def run(x, c, y, total):\n    z = torch.zeros(256, 256, device='cuda')\n" +
			"    product[(1,)](z, z, z, N=256)\n", worker.Call, "OutOfResources: out of resource: shared memory", nil},
		{"too large a cluster", "def run(x, c, y, total):\n    scale[(1,)](x, y, 3, c, BLOCK=4, BEHIND=0, num_ctas=16)\n" +
			"    scale[(1,)](x, y, 3, c, BLOCK=4, BEHIND=0, num_ctas=32)\n", worker.Call,
			"RuntimeError: Triton Error [CUDA]: a kernel launch error has occurred due to cluster misconfiguration", nil},
		{"too large a cooperative launch", "def run(x, c, y, total):\n    n = torch.cuda.get_device_properties(0).multi_processor_count\n" +
			"    scale[(16 * n,)](x, y, 3, c, BLOCK=4, BEHIND=0, launch_cooperative_grid=True)\n" +
			"    scale[(16 * n + 1,)](x, y, 3, c, BLOCK=4, BEHIND=0)\n" +
			"    scale[(16 * n + 1,)](x, y, 3, c, BLOCK=4, BEHIND=0, launch_cooperative_grid=True)\n", worker.Call,
			"RuntimeError: Triton Error [CUDA]: too many blocks in cooperative launch", nil},
		{"does not compile", "@triton.jit\ndef bad(x):\n    tl.store(x, unknown)\ndef run(x, c, y, total):\n    bad[(1,)](x)\n",
			worker.Call, "main.py:33:17: CompilationError: NameError('unknown is not defined')", nil},
		{"products", "def run(x, c, y, total):\n    for t in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):\n" +
			"        a = (torch.arange(1024, device='cuda') % 7 - 3).view(32, 32).to(t)\n        b = a.float().t().contiguous().to(t)\n" +
			"        out = torch.empty(32, 32, device='cuda')\n        product[(1,)](a, b, out, N=32)\n" +
			"        assert torch.equal(out, a.float() @ b.float()), t\n" +
			"    a = torch.full((32, 32), 1 + 2**-12, device='cuda')\n    out = torch.empty_like(a)\n" +
			"    product[(1,)](a, a, out, N=32)\n    y.copy_(out[0, :3])\n" + total, "", "", []float32{32, 32, 32}},
		{"scan, reduction, atomics and print", "def run(x, c, y, total):\n" +
			"    v = torch.cat([x, x.new_zeros(1)])\n    sums = torch.empty_like(v)\n    count = torch.zeros(1, dtype=torch.int32, device='cuda')\n" +
			"    many[(2,)](v, sums, total, count, BLOCK=4)\n    assert count.item() == 8, count\n    assert total.item() == 30\n" +
			"    y.copy_(sums[:3])\n    total.fill_(29)\n", "", "", []float32{1, -1, 29}},
		{"tuned", "CONFIGS = [(16, 0), (32, 0)]\n" + tune + total, "", "", []float32{5, -10, 150}},
		{"tuned, with a wrong one", "CONFIGS = [(16, 0), (32, 1), (64, 0)]\n" + tune + total, "", "", []float32{6, -12, 180}},
		{"tuned, with one that faults", "CONFIGS = [(16, 0), (32, 0)]\n" + strings.ReplaceAll(tune, "mask=i < n)\ndef", "mask=i < BLOCK - 12)\ndef"),
			worker.Call, "past the end of argument 2 (y)", nil},
		{"tuned in an own manner", "def run(x, c, y, total):\n" +
			"    triton.testing.do_bench(lambda: scale[(1,)](x, y, 3, c, BLOCK=4, BEHIND=0))\n" + total, "", "", []float32{5, -10, 150}},
		{"compiled only", "def run(x, c, y, total):\n    k = scale.warmup(x, y, 3, c, BLOCK=4, BEHIND=0, grid=(1,))\n" +
			"    assert k.metadata.target.arch == 100\n" + scaled + total, "", "", []float32{5, -10, 150}},
		{"a graph", "def run(x, c, y, total):\n    torch.cuda.CUDAGraph()\n", worker.Lacking,
			"the virtual GPU does not support torch.cuda.CUDAGraph", nil},
		{"tuned, with halves", "@triton.autotune(configs=[triton.Config({'AT': 0}), triton.Config({'AT': 2})], key=['n'])\n" +
			"@triton.jit\ndef half(x, y, n, c, AT: tl.constexpr):\n    i = AT + tl.arange(0, 2)\n" +
			"    tl.store(y + i, tl.load(x + i, mask=i < n) * c, mask=i < n)\n" +
			"def run(x, c, y, total):\n    y.fill_(7)\n    half[(1,)](x, y, 3, c)\n" + total, "", "", []float32{7, 7, 150}},
		{"tuned, in place", "@triton.autotune(configs=[triton.Config({'B': 4}), triton.Config({'B': 8})], key=['n'])\n" +
			"@triton.jit\ndef twice(y, n, B: tl.constexpr):\n    i = tl.arange(0, B)\n" +
			"    tl.store(y + i, tl.load(y + i, mask=i < n) * 2, mask=i < n)\n" +
			"def run(x, c, y, total):\n    y.copy_(x)\n    twice[(1,)](y, 3)\n" + total, "", "", []float32{4, -8, 120}},
		{"tuned, in place and restored", "@triton.autotune(configs=[triton.Config({'B': 4}), triton.Config({'B': 8})], key=['n'], restore_value=['y'])\n" +
			"@triton.jit\ndef twice(y, n, B: tl.constexpr):\n    i = tl.arange(0, B)\n" +
			"    tl.store(y + i, tl.load(y + i, mask=i < n) * 2, mask=i < n)\n" +
			"def run(x, c, y, total):\n    y.copy_(x)\n    twice[(1,)](y, 3)\n" + total, "", "", []float32{2, -4, 60}},
		{"CUDA in Python that does not compile", "def run(x, c, y, total):\n" +
			"    raise RuntimeError('nvcc main.cu\\nmain.cu(3): error: identifier \"z\" is undefined')\n",
			worker.Call, "main.cu(3): error: identifier", nil},
		{"CUDA in Python without its headers", "def run(x, c, y, total):\n" +
			"    raise RuntimeError('nvcc main.cu\\nmain.cu:3:10: fatal error: cuda_runtime.h: No such file or directory')\n",
			worker.Lacking, "the virtual GPU's build has no header cuda_runtime.h", nil},
	} {
		tc.run(t, client, tritonHead)
		log := client.TakeLog()
		if tc.name == "scan, reduction, atomics and print" && !strings.Contains(log, "value: 30.0") {
			t.Errorf("%s: got log %q, want the value that was printed", tc.name, log)
		}
		if told := strings.Contains(log, "autotune: tuned: the results of BLOCK: 32, WRONG: 1,"); told != strings.Contains(tc.name, "a wrong one") {
			t.Errorf("%s: got log %q, told of a configuration: %v", tc.name, log, told)
		}
	}
}

// If a Triton other than the contest's rejects a kernel, the solution gets no
// verdict, and the error names both versions.
func TestOtherTriton(t *testing.T) {
	virtualCommand(t, "triton")
	path := t.TempDir()
	for name, text := range map[string]string{"METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 9.9\n",
		"entry_points.txt": "[triton.backends]\nnvidia = triton.backends.nvidia\namd = triton.backends.amd\n"} {
		file := filepath.Join(path, "triton-9.9.dist-info", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PYTHONPATH", path)
	client := open(t, command(t))
	const both = ": by Triton 9.9; the contest uses 3.6.0, which fisub toolchain install fetches"
	for _, tc := range []pyCall{
		{"refused", "@triton.jit\ndef bad(x):\n    tl.store(x, tl.nothing)\ndef run(x, c, y, total):\n    bad[(1,)](x)\n", worker.Lacking,
			both, nil},
		{"missing", "tl.nothing\ndef run(x, c, y, total):\n    pass\n", worker.Lacking, both, nil},
		{"its own mistake", "def run(x, c, y, total):\n    raise ValueError('odd')\n", worker.Call, "ValueError: odd", nil},
		{"compiled", "def run(x, c, y, total):\n    scale[(1,)](x, y, 3, c, BLOCK=4, BEHIND=0)\n    total.fill_(29)\n", "", "",
			[]float32{5, -10, 150}},
	} {
		tc.run(t, client, tritonHead)
	}
}

// Submissions find the contest's Triton if it is in the cache, regardless of the interpreter's own.
func TestFindTriton(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	python := filepath.Join(bin, "python")
	script := "#!/bin/sh\ncase $2 in *find_spec*) exit 0 ;; esac\necho cp312\necho 3.9.0\n"
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FISUB_PYTHON", python)
	t.Setenv("PYTHONPATH", "/own")
	got, err := FindTriton(t.Context(), root)
	if err != nil || *got != (Triton{Python: python, Tag: "cp312", Own: "3.9.0"}) || got.Version() != "3.9.0" || got.Env() != nil {
		t.Errorf("not fetched: got %+v, %v", got, err)
	}
	dir, _ := nvcc.TritonInstalled(root, "cp312")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err = FindTriton(t.Context(), root)
	if err != nil || got.Version() != Contest || !slices.Equal(got.Env(), []string{"PYTHONPATH=" + dir + ":/own"}) {
		t.Errorf("fetched: got %+v, %v", got, err)
	}
}

// A pyCall is a submission and its expected result: y, or an error of that kind and text.
type pyCall struct {
	name, source string      // source is "" to call the solution of the case before again
	kind         worker.Kind // "" if the call succeeds
	text         string
	y            []float32
}

func (tc *pyCall) run(t *testing.T, client *worker.Client, head string) {
	t.Helper()
	var err error
	if tc.source != "" {
		err = build(t, client, head+tc.source, true)
	}
	var got []float32
	if err == nil {
		out := load(t, client)
		if _, err = client.Run(t.Context(), out); err == nil {
			got = floats(t, out, 0, 3)
		}
	}
	var we *worker.Error
	switch {
	case tc.kind == "" && err != nil:
		errors.As(err, &we)
		t.Errorf("%s: %v\n%s", tc.name, err, we.Log)
	case tc.kind != "" && (!errors.As(err, &we) || we.Kind != tc.kind || !strings.Contains(we.Text, tc.text)):
		t.Errorf("%s: got %v, want a %s error with %q", tc.name, err, tc.kind, tc.text)
	case !slices.Equal(got, tc.y):
		t.Errorf("%s: got %v, want %v", tc.name, got, tc.y)
	}
}

// CUDA that a Python submission builds with tvm-ffi runs on the virtual GPU.
func TestTVMFFI(t *testing.T) {
	client := open(t, compilerCommand(t, "tvm_ffi"))
	const cuda = `import torch, tvm_ffi.cpp
SOURCE = """
#include <cuda_runtime.h>
__global__ void kernel(const float* x, float* y, int n, float c) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * c; }
void scale(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t n, double c) {
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA, ValueError) << "x is not on the GPU";
  kernel<<<1, 32>>>(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n, c);
}
"""
def run(x, c, y, total):
    m = tvm_ffi.cpp.load_inline("m", cuda_sources=SOURCE, functions=["scale"], extra_cuda_cflags=["-gencode", "arch=compute_90,code=sm_90"])
    total.fill_(x.sum())
`
	own := `import os, subprocess, tempfile, torch, tvm_ffi
SOURCE = """
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
__global__ void twice(const float* x, float* y, float* total) {
  y[threadIdx.x] = x[threadIdx.x] * 5;
  if (threadIdx.x == 0) *total = 150;
}
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView total) {
  twice<<<1, 3>>>(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), static_cast<float*>(total.data_ptr()));
}
TVM_FFI_STATIC_INIT_BLOCK() { tvm::ffi::reflection::GlobalDef().def("fisub.twice", run); }
"""
root = os.path.dirname(tvm_ffi.__file__)
def run(x, c, y, total):
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/a.cu", "w") as f:
            f.write(SOURCE)
        subprocess.run(["nvcc", "-shared", "-std=c++17", "-Xcompiler", "-fPIC", "-arch=sm_100a", "-I" + root + "/include", "a.cu",
                        "-L" + root + "/lib", "-ltvm_ffi", "-o", "a.so"], check=True, cwd=d)
        tvm_ffi.load_module(d + "/a.so")
    tvm_ffi.get_global_func("fisub.twice")(*(tvm_ffi.from_dlpack(t) for t in (x, y, total)))
`
	const made = `import torch, tvm_ffi.cpp
SOURCE = """
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
__global__ void kernel(const float* x, float* y, int n, float c) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * c; }
tvm::ffi::Tensor scaled(tvm::ffi::TensorView x, int64_t n, double c) {
  auto y = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  kernel<<<1, 32>>>(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), n, c);
  return y;
}
"""
def run(x, c, y, total):
    m = tvm_ffi.cpp.load_inline("made", cuda_sources=SOURCE, functions=["scaled"])
    total.fill_(x.sum())
    first = m.scaled(x, 3, 2.0)
    assert first.is_cuda
`
	const bound = `import ctypes, os, subprocess, tempfile, torch
SOURCE = """
extern "C" __global__ void kernel(const float* x, float* y, int n, float c) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * c; }
extern "C" int scale(const float* x, float* y, int n, float c) { kernel<<<1, 32>>>(x, y, n, c); return cudaGetLastError(); }
"""
n = ctypes.c_int()
assert ctypes.CDLL("libcudart.so.12").cudaGetDeviceCount(ctypes.byref(n)) == 0 and n.value == 1
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
def run(x, c, y, total):
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/a.cu", "w") as f:
            f.write(SOURCE)
        subprocess.run(["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_100", "a.cu", "-o", "a.so"], check=True, cwd=d)
        lib = ctypes.CDLL(d + "/a.so")
    total.fill_(x.sum())
    p = lambda t: ctypes.c_void_p(t.data_ptr())
`
	const ignored = "    assert lib.scale(p(x), p(y), 3, ctypes.c_float(c)) == 0\n" +
		"    cudart = ctypes.CDLL('libcudart.so.12')\n    cudart.cudaMemset(None, 0, 4)\n"
	for _, tc := range []pyCall{
		{"returned", made + "    y.copy_(m.scaled(m.scaled(first, 3, 1.0), 3, c / 2))\n", "", "", []float32{5, -10, 150}},
		{"past the end of what it has made", made + "    m.scaled(first, 4, 1.0)\n", worker.Call, "past the end of", nil},
		{"through ctypes", bound + "    assert lib.scale(p(x), p(y), 3, ctypes.c_float(c)) == 0\n", "", "", []float32{5, -10, 150}},
		{"through ctypes, past the end", bound + "    lib.scale(p(x), p(y), 4, ctypes.c_float(c))\n", worker.Call, "past the end of argument", nil},
		{"a copy of tensors", bound + "    ctypes.CDLL('libcudart.so.12').cudaMemcpy(p(y), p(x), 12, 3)\n", "", "", []float32{1, -2, 30}},
		{"an ignored error", bound + ignored, worker.Call, "cudaErrorInvalidValue: invalid argument", nil},
		{"an ignored error, cleared", bound + ignored + "    cudart.cudaGetLastError()\n", "", "", []float32{5, -10, 150}},
		{"in place", cuda + "    m.scale(x, y, 3, c)\n", "", "", []float32{5, -10, 150}},
		{"by an own nvcc", own, "", "", []float32{5, -10, 150}},
		{"past the end", cuda + "    try:\n        m.scale(x, y, 4, c)\n    except BaseException:\n        pass\n", worker.Call,
			"past the end of argument", nil},
		{"on the CPU", cuda + "    m.scale(x.cpu(), y, 3, c)\n", worker.Call, "x is not on the GPU", nil},
		{"no header", strings.Replace(cuda, "cuda_runtime.h", "cutlass/cutlass.h", 1), worker.Lacking,
			"the virtual GPU's build has no header cutlass/cutlass.h", nil},
		{"no header of its own", strings.Replace(cuda, "cuda_runtime.h", "include/shape.h", 1), worker.Call, "include/shape.h", nil},
		{"no header of its own, by an own nvcc", strings.Replace(own, "cuda_runtime.h", "include/shape.h", 1), worker.Call,
			"CalledProcessError", nil},
		{"no header of CUTLASS, by an own nvcc", strings.Replace(own, "cuda_runtime.h", "cute/tensor.hpp", 1), worker.Lacking,
			"the virtual GPU's build has no header cute/tensor.hpp", nil},
	} {
		tc.run(t, client, "")
	}
}

// CUDA that returns its outputs is built and called by Python's tvm-ffi. It returns several outputs as an Array,
// which the official evaluator treats as one value.
func TestReturnedByCUDA(t *testing.T) {
	client := open(t, compilerCommand(t, "tvm_ffi"))
	const kernel = `#include <cuda_runtime.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;
__global__ void kernel(const float* x, float* y, int n, float c) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * c; }
Tensor scaled(TensorView x, int64_t c) {
  Tensor y = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  kernel<<<1, 32>>>(static_cast<float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.size(0), c);
  return y;
}
`
	for _, tc := range []struct {
		name, export string
		outputs      int
		y            []float32
		text         string
	}{
		{"one", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, scaled);\n", 1, []float32{5, -10, 150}, ""},
		{"several", "tvm::ffi::Array<Tensor> two(TensorView x, int64_t c) { return {scaled(x, c), scaled(x, c)}; }\n" +
			"TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, two);\n", 2, nil, "ValueError: Single value returned but 2 outputs expected"},
	} {
		text := definition
		if tc.outputs == 1 {
			text = strings.Replace(text, `,"total":{"shape":[],"dtype":"float32"}`, "", 1)
		}
		def, _, err := trace.DecodeDefinition([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		sol := &trace.Solution{Name: "s", Definition: "d", Author: "a",
			Spec:    trace.BuildSpec{Language: trace.CUDA, TargetHardware: []string{"cuda"}, EntryPoint: "main.cu::run"},
			Sources: []trace.SourceFile{{Path: "main.cu", Content: kernel + tc.export}}}
		if !Runs(&sol.Spec) {
			t.Error("got that it does not run in Python")
		}
		if err := compilers[client](def, sol); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		out := loadOutputs(t, client, tc.outputs)
		_, err = client.Run(t.Context(), out)
		var we *worker.Error
		if tc.text != "" && (!errors.As(err, &we) || we.Kind != worker.Call || we.Text != tc.text) || tc.text == "" && err != nil {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.text)
		} else if got := floats(t, out, 0, 3); tc.text == "" && !slices.Equal(got, tc.y) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.y)
		}
	}
}

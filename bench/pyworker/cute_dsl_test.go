package pyworker

import (
	"testing"

	"fisub/bench/worker"
	"fisub/internal/longtest"
)

// Kernels of the CuTe DSL run on the virtual GPU, however they are called.
func TestCuteDSL(t *testing.T) {
	longtest.CI(t, "imports the CuTe DSL")
	const python = `import torch
import cutlass
import cutlass.cute as cute
import cuda.bindings.driver as cuda
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, c: cutlass.Float32, n: cutlass.Int32):
    i, _, _ = cute.arch.thread_idx()
    if i < n:
        y[i] = x[i] * c

@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, c: cutlass.Float32, n: cutlass.Int32, stream: cuda.CUstream):
    scale_kernel(x, y, c, n).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

@cute.kernel
def copy_kernel(load: cute.CopyAtom, source: cute.Tensor, store: cute.CopyAtom, to: cute.Tensor, layout: cute.Layout):
    smem = cutlass.utils.SmemAllocator()
    barrier = smem.allocate_array(cutlass.Int64, 1)
    tile = smem.allocate_tensor(cutlass.Float32, layout, 128)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_expect_tx(barrier, 4 * cute.cosize(layout))
    cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    def parts(atom, tensor):
        whole = cute.local_tile(tensor, layout.shape, (0, 0))
        return cpasync.tma_partition(atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(whole, 0, 2))
    inside, outside = parts(load, source)
    cute.copy(load, outside, inside, tma_bar_ptr=barrier)
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    inside, outside = parts(store, to)
    cute.copy(store, inside, outside)

@cute.jit
def copy(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout((8, 16), stride=(16, 1))
    load, source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, layout.shape)
    store, to = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, layout.shape)
    copy_kernel(load, source, store, to, layout).launch(grid=(1, 1, 1), block=(32, 1, 1))

def arguments(x, y, c, n):
    return from_dlpack(x), from_dlpack(y), cutlass.Float32(c), cutlass.Int32(n), cuda.CUstream(torch.cuda.current_stream().cuda_stream)

def plain(x, c, y):
    scale(*arguments(x, y, c, 3))

def compiled(x, c, y):
    f = cute.compile(scale, *arguments(x, y, c, 3))
    f(*arguments(x, y, c, 3))

def through_tvm(x, c, y):
    f = cute.compile(scale, *arguments(x, y, c, 3), options="--enable-tvm-ffi")
    f(x, y, float(c), 3, cuda.CUstream(0))

def tensor_copies(x, c, y):
    a = torch.zeros(8, 16, device="cuda")
    a[5, :3] = x * c
    b = torch.zeros_like(a)
    copy(from_dlpack(a, assumed_align=16), from_dlpack(b, assumed_align=16))
    y.copy_(b[5, :3])

def past_the_end(x, c, y):
    scale(*arguments(x, y, c, 4))

def on_the_cpu(x, c, y):
    scale(*arguments(x.cpu(), y, c, 3))

calls = iter((plain, compiled, through_tvm, tensor_copies, past_the_end, on_the_cpu))
def run(x, c, y, total):
    next(calls)(x, c, y)
`
	client := open(t, compilerCommand(t, "cutlass"))
	right := []float32{5, -10, 150}
	for _, tc := range []pyCall{
		{"a call", python, "", "", right},
		{"compiled", "", "", "", right},
		{"through tvm-ffi", "", "", "", right},
		{"tensor copies", "", "", "", right},
		{"past the end", "", worker.Call, "DeviceFault: main.py:12:15: kernel kernel_cutlass_scale_kernel_", nil},
		{"on the CPU", "", worker.Call, "DeviceFault: main.py:12:15: kernel kernel_cutlass_scale_kernel_", nil},
	} {
		tc.run(t, client, "")
	}
}

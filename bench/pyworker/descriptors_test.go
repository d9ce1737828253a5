package pyworker

import (
	"fmt"
	"testing"

	"fisub/bench/worker"
)

const descriptorHead = `import functools
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit(do_not_specialize=['row', 'col'])
def load(d, out, row, col):
    i = tl.arange(0, 8)
    tl.store(out + i[:, None] * 8 + i[None, :], d.load([row, col]))

@triton.jit(do_not_specialize=['col'])
def store(d, col):
    d.store([0, col], tl.full((8, 8), 7, tl.float32))

@triton.jit(do_not_specialize=['col'])
def add(d, col):
    d.atomic_add([0, col], tl.full((8, 8), 7, tl.float32))

@triton.jit(do_not_specialize=['col'])
def pick(d, out, col):
    i = tl.arange(0, 8)
    tl.store(out + i[:, None] * 8 + i[None, :], d.gather(7 - i, col))

@triton.jit(do_not_specialize=['at'])
def line(d, out, at):
    tl.store(out + tl.arange(0, 8), d.load([at]))

@triton.jit(do_not_specialize=['at'])
def slab(d, out, at):
    i = tl.arange(0, 8)
    tl.store(out + i[:, None] * 8 + i[None, :], d.load([0, at, 4]).reshape(8, 8))

@triton.jit(do_not_specialize=['rows', 'cols', 'stride', 'row', 'col'])
def made(x, out, rows, cols, stride, row, col, USED: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [rows, cols], [stride, 1], [8, 8])
    if USED:
        i = tl.arange(0, 8)
        tl.store(out + i[:, None] * 8 + i[None, :], d.load([row, col]))

@triton.jit(do_not_specialize=['col'])
def second(d, out, col):
    return load(d, out, 0, col)

@triton.jit(do_not_specialize=['col'])
def unused(x, d, out, col, COPIED: tl.constexpr):
    e = tl.make_tensor_descriptor(x, [64, 64], [64, 1], [8, 8])
    r = e.load([0, 4]) if COPIED else out
    for i in range(2):
        d.load([0, col + i])
    load(d, out, 0, 4)

@triton.jit
def narrow(d, out):
    tl.store(out, tl.sum(tl.sum(d.load([0, 0]).to(tl.float32), 1), 0))

@triton.jit
def pair(t, out):
    load(t[0], out, 0, 4)

@triton.jit
def product(a, b, c, M, N, K, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK, BLOCK])
    b = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK, BLOCK])
    c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK, BLOCK])
    columns = tl.cdiv(N, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK) * columns, PROGRAMS):
        row, col = tile // columns * BLOCK, tile % columns * BLOCK
        sum = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            sum = tl.dot(a.load([row, k]), b.load([k, col]), sum)
        c.store([row, col], sum.to(tl.float16))

def host(t, block=(8, 8), **changes):
    d = TensorDescriptor.from_tensor(t, list(block))
    for name, value in changes.items():
        setattr(d, name, value)
    return d

def multiply():
    a, b = torch.ones(40, 56, device='cuda').half(), torch.arange(72, device='cuda').half().expand(56, 72).contiguous()
    r = torch.empty(40, 72, device='cuda').half()
    product[(3,)](a, b, r, 40, 72, 56, BLOCK=16, PROGRAMS=3)
    assert torch.equal(r, a @ b)
    out.copy_(r[32:, 64:])

def setup(x):
    global numbers, out
    numbers = torch.arange(4096, device='cuda', dtype=torch.float32)
    out = torch.zeros(8, 8, device='cuda')
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device='cuda'))
    return numbers.view(64, 64)

def run(x, c, y, total):
    m = setup(x)
    total.fill_(29)
    check(m)
    y.copy_(out[1, :3])

`

// Copies with descriptors follow the rules of TMA, as an H200 applies them to the same calls.
func TestTritonDescriptors(t *testing.T) {
	client := open(t, virtualCommand(t, "triton"))
	const innermost = ": the innermost coordinate of a tensor copy, %d, is %d bytes, not a multiple of 16: a GPU reports an illegal instruction"
	const refused = "RuntimeError: Triton Error [CUDA]: Failed to create tensor map descriptor: invalid argument (d: "
	cases := []struct {
		call, text string
		y          []float32
	}{
		{"load[(1,)](host(m), out, 0, 4)", "", []float32{68, 69, 29}},
		{"load[(1,)](host(m), out, 0, 5)", "main.py:10:55: kernel load, block (0,0,0), thread (0,0,0)" + fmt.Sprintf(innermost, 5, 20), nil},
		{"load[(1,)](host(m), out, 0, -5)", fmt.Sprintf(innermost, -5, -20), nil},
		{"load[(1,)](host(m), out, 0, 1001)", fmt.Sprintf(innermost, 1001, 4004), nil},
		{"load[(1,)](host(m), out, -1, -400)", "", []float32{0, 0, 29}},
		{"load[(1,)](host(m), out, 5, 1 << 30)", "", []float32{0, 0, 29}},
		{"load[(1,)](host(m.bfloat16()), out, 0, 4)", fmt.Sprintf(innermost, 4, 8), nil},
		{"load[(1,)](host(m.bfloat16()), out, 0, 8)", "", []float32{72, 73, 29}},
		{"second[(1,)](host(m), out, 6)", fmt.Sprintf(innermost, 6, 24), nil},
		{"store[(1,)](host(m), 8), out.copy_(m[:8, 8:16])", "", []float32{7, 7, 29}},
		{"store[(1,)](host(m), 9)", "main.py:14:22: kernel store, block (0,0,0), thread (0,0,0)" + fmt.Sprintf(innermost, 9, 36), nil},
		{"add[(1,)](host(m), 4), out.copy_(m[:8, 4:12])", "", []float32{75, 76, 29}},
		{"add[(1,)](host(m), 2)", fmt.Sprintf(innermost, 2, 8), nil},
		{"pick[(1,)](host(m, (1, 8)), out, 4)", "", []float32{388, 389, 29}},
		{"pick[(1,)](host(m, (1, 8)), out, 3)", fmt.Sprintf(innermost, 3, 12), nil},
		{"line[(1,)](host(numbers, (8,)), out[1:], 20)", "", []float32{20, 21, 29}},
		{"line[(1,)](host(numbers, (8,)), out[1:], 21)", fmt.Sprintf(innermost, 21, 84), nil},
		{"slab[(1,)](host(m.view(8, 8, 64), (1, 8, 8)), out, -1)", "", []float32{4, 5, 29}},
		{"load[(1,)](host(m[:5, :13]), out, 0, 4)", "", []float32{68, 69, 29}}, // an odd shape with right strides
		{"made[(1,)](numbers, out, 64, 64, 64, 1, 4, True)", "", []float32{132, 133, 29}},
		{"made[(1,)](numbers, out, 64, 64, 64, 1, 5, True)", fmt.Sprintf(innermost, 5, 20), nil},
		{"made[(1,)](numbers.half(), out, 1, 61, 61, 0, 0, True)", "", []float32{0, 0, 29}},
		{"made[(1,)](numbers, out, 64, 64, 0, 0, 0, True)", "", []float32{0, 1, 29}},
		{"made[(1,)](numbers.half(), out, 2, 61, 61, 0, 0, True)",
			"use of a descriptor with strides[0] = 61: 122 bytes, not a multiple of 16: a GPU rounds down", nil},
		{"made[(1,)](numbers.half(), out, 2, 61, 61, 0, 0, False)", "", []float32{0, 0, 29}},
		{"made[(1,)](numbers, out, 64, 64, -64, 0, 0, True)", "strides[0] = -64, not between 0 and 2^40 bytes", nil},
		{"made[(1,)](numbers, out, 64, 64, 1 << 38, 0, 0, True)", "strides[0] = 274877906944, not between 0 and 2^40 bytes", nil},
		{"made[(1,)](numbers, out, 0, 64, 64, 0, 0, True)", "use of a descriptor with shape[0] = 0", nil},
		{"made[(1,)](numbers, out, 0, 64, 64, 0, 0, False)", "", []float32{0, 0, 29}},
		{"made[(1,)](numbers[2:], out, 8, 64, 64, 0, 0, True)", "main.py:36:64: kernel made, block (0,0,0), thread (0,0,0): " +
			"the address of a descriptor's tensor, 0x", nil},
		{"load[(1,)](host(m, strides=[62, 1]), out, 0, 0)", refused + "strides[0] = 62: 248 bytes, not a multiple of 16)", nil},
		{"load[(1,)](host(m, strides=[1 << 38, 1]), out, 0, 0)", refused + "strides[0] = 274877906944, not between 0 and 2^40 bytes)", nil},
		{"load[(1,)](host(m, strides=[0, 1]), out, 0, 0)", "", []float32{0, 1, 29}},
		{"load[(1,)](host(m, shape=[0, 64]), out, 0, 0)", refused + "shape[0] = 0)", nil},
		{"load[(1,)](host(m, base=numbers[1:]), out, 0, 0)", refused + "the address 0x", nil},
		// No code is generated for unused loads and descriptors.
		{"unused[(1,)](numbers[1:], host(m), out, 4, False)", "", []float32{68, 69, 29}},
		{"unused[(1,)](numbers[1:], host(m), out, 4, True)", "", []float32{68, 69, 29}},
		{"narrow[(1,)](host(m.half(), (8, 4)), out)", refused + "blocks of 8 contiguous bytes, not a multiple of 16)", nil},
		{"pair[(1,)]((host(m), host(m)), out)", "AssertionError", nil},
		{"load[(1,)](TensorDescriptor(m[:, 1:], [64, 63], [64, 1], [8, 8]), out, 0, 0)", "AssertionError: base must be 16-byte aligned", nil},
		// Persistent, with sizes that no block divides.
		{"multiply()", "", []float32{3584, 3640, 29}},
	}
	source := "calls = iter([\n"
	for _, c := range cases {
		source += "    lambda m: (" + c.call + "),\n"
	}
	source += "])\ndef check(m):\n    next(calls)(m)\n    out[:, 2] = 29\n"
	for _, c := range cases {
		tc := pyCall{c.call, source, "", c.text, c.y}
		if c.text != "" {
			tc.kind = worker.Call
		}
		tc.run(t, client, descriptorHead)
		source = "" // the same solution's next call
	}
}

// The allocator of a solution runs with the CUDA device visible, and gives the memory that a GPU would need.
func TestTritonAllocator(t *testing.T) {
	client := open(t, virtualCommand(t, "triton"))
	const call = "    made[(2,)](numbers, out, 64, 64, 64, 1, 4, True)\n"
	right := []float32{132, 133, 134}
	for _, tc := range []pyCall{
		{"as documented", "def check(m):\n" + call, "", "", right},
		{"zeros", "def check(m):\n    triton.set_allocator(lambda size, align, stream: torch.zeros(size, dtype=torch.int8, device='cuda'))\n" +
			call, "", "", right},
		{"partial", "def get(device, size, align, stream):\n    assert (size, align, stream) == (256, 128, 0)\n" +
			"    return torch.empty(size, dtype=torch.int8, device=device)\n" +
			"def check(m):\n    triton.set_allocator(functools.partial(get, 'cuda'))\n" + call, "", "", right},
		{"one buffer", "def check(m):\n    buffer = torch.zeros(512, dtype=torch.uint8, device='cuda')\n" +
			"    triton.set_allocator(lambda size, align, stream: buffer[128:])\n" + call +
			"    assert buffer[:128].any() == buffer[384:].any() == False and buffer[128:384].all()\n", "", "", right},
		{"an address", "def check(m):\n    buffer = torch.zeros(256, dtype=torch.uint8, device='cuda')\n" +
			"    triton.set_allocator(lambda size, align, stream: buffer.data_ptr())\n" + call, "", "", right},
		{"memory in use", "def check(m):\n    triton.set_allocator(lambda size, align, stream: numbers[64:])\n" +
			"    made[(2,)](numbers, out, 64, 64, 64, 1, 0, True)\n    assert out[0].isnan().all()\n    out[1, :3] = 3\n", "", "", []float32{3, 3, 3}},
		{"its own error", "def check(m):\n    def get(size, align, stream):\n        raise ValueError('no memory left')\n" +
			"    triton.set_allocator(get)\n" + call, worker.Call, "ValueError: no memory left", nil},
		{"none", "def check(m):\n    triton.set_allocator(lambda *args: None)\n" + call, worker.Call,
			"kernel made: Triton's allocator returned None, not 256 bytes", nil},
		{"another object", "def check(m):\n    triton.set_allocator(lambda *args: 'memory')\n" + call, worker.Call,
			"TypeError: Pointer argument must be either uint64 or have data_ptr method", nil},
		{"too little", "def check(m):\n    triton.set_allocator(lambda *args: torch.empty(128, dtype=torch.int8, device='cuda'))\n" + call,
			worker.Call, "kernel made: Triton's allocator returned 128 bytes, not 256", nil},
		{"misaligned", "def check(m):\n    triton.set_allocator(lambda size, *args: torch.empty(size + 16, dtype=torch.int8, device='cuda')[16:])\n" +
			call, worker.Call, "kernel made: Triton's allocator returned memory 16 bytes after the start of a tensor, not aligned to 128 bytes", nil},
		{"on the host", "def check(m):\n    triton.set_allocator(lambda size, *args: torch.empty(size, dtype=torch.int8))\n" + call,
			worker.Call, "ValueError: Pointer argument (at -1) cannot be accessed from Triton (cpu tensor?)", nil},
		{"no allocator", "def check(m):\n    from triton.runtime import _allocation\n    triton.set_allocator(_allocation.NullAllocator())\n" + call,
			worker.Call, "RuntimeError: Kernel requires a runtime memory allocation, but no allocator was set", nil},
	} {
		tc.run(t, client, descriptorHead)
	}
}

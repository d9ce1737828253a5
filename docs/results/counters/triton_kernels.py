"""Triton kernels to profile with ncu --profile-from-start off: each is launched once with the profiler on.

    python3 triton_kernels.py            # the kernels of this file
    python3 triton_kernels.py KERNEL.PY  # that of a submission for gdn_decode_qk4_v8_d128_k_last, batch 1
"""

import importlib.util
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + i, v / tl.sum(v, axis=0), mask=i < n)


@triton.jit
def layer_norm(x, gain, bias, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(i < n, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, axis=0) / n + 1e-5)
    g = tl.load(gain + i, mask=i < n)
    b = tl.load(bias + i, mask=i < n)
    tl.store(out + row * n + i, d * scale * g + b, mask=i < n)


@triton.jit
def matmul(a, b, c, N: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, N, BLOCK_K):
        left = tl.load(a + rows[:, None] * N + start + k[None, :])
        right = tl.load(b + (start + k)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@triton.jit
def gather(table, index, out, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)
    row = tl.load(index + i, mask=i < n, other=0)
    v = tl.load(table + row[:, None] * WIDTH + column[None, :], mask=(i < n)[:, None])
    tl.store(out + i[:, None] * WIDTH + column[None, :], v, mask=(i < n)[:, None])


def profile(launch):
    """Launches once to compile, and once with the profiler on."""
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def own():
    def floats(*shape, dtype=torch.float32):
        n = torch.Size(shape).numel()
        return (torch.arange(n, device="cuda").remainder(1021).float() / 1021 - 0.5).to(dtype).reshape(shape)

    x, y = floats(5000), floats(5000)
    profile(lambda: vector_add[(5,)](x, y, torch.empty_like(x), 5000, BLOCK=1024))
    rows = floats(16, 1000)
    profile(lambda: softmax[(16,)](rows, torch.empty_like(rows), 1000, BLOCK=1024))
    gain, bias = floats(1000), floats(1000)
    profile(lambda: layer_norm[(16,)](rows, gain, bias, torch.empty_like(rows), 1000, BLOCK=1024))
    a, b = floats(128, 128, dtype=torch.float16), floats(128, 128, dtype=torch.float16)
    profile(lambda: matmul[(2, 2)](a, b, torch.empty_like(a), N=128, BLOCK=64, BLOCK_K=32))
    table, index = floats(256, 64), torch.arange(500, device="cuda").mul(37).remainder(256).int()
    out = torch.empty(500, 64, device="cuda")
    profile(lambda: gather[(8,)](table, index, out, 500, WIDTH=64, BLOCK=64))


def submission(path):
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)

    def values(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, dtype=dtype, device="cuda")

    q, k, v = values(1, 1, 4, 128), values(1, 1, 4, 128), values(1, 1, 8, 128)
    state = values(1, 8, 128, 128, dtype=torch.float32)
    a_log, dt_bias = values(8, dtype=torch.float32), values(8, dtype=torch.float32)
    a, b = values(1, 1, 8), values(1, 1, 8)
    output, new_state = torch.empty_like(v), torch.empty_like(state)
    profile(lambda: module.kernel(q, k, v, state, a_log, a, dt_bias, b, None, output, new_state))


if len(sys.argv) > 1:
    submission(sys.argv[1])
else:
    own()

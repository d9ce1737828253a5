"""Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last), in Triton.

    g      = exp(-exp(A_log) * softplus(a + dt_bias))
    beta   = sigmoid(b)
    old    = g * (S k)
    S'     = g * S + beta * (v - old) k^T
    output = scale * (S' q)

q, k (B, 1, 4, 128) bfloat16; v, output (B, 1, 8, 128) bfloat16; state, new_state (B, 8, 128, 128) float32 as (b, hv, v, k);
A_log, dt_bias (8) float32; a, b (B, 1, 8) bfloat16. state None means zeros; scale None or 0 means 1/sqrt(128). Arithmetic is
float32. Destination-passing: the last two arguments are written.

One program updates BLOCK_V rows of one head's state in one pass. Where to begin: the time is that of reading and writing the
state, 1 MiB for each sequence; BLOCK_V and num_warps by batch size.
"""

import math

import torch
import triton
import triton.language as tl

HEADS_QK = 4
HEADS_V = 8
DIM = 128
BLOCK_V = 16


@triton.jit
def decode_kernel(q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state, HAS_STATE: tl.constexpr,
                  HEADS_QK: tl.constexpr, HEADS_V: tl.constexpr, DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)  # b * HEADS_V + hv
    hv = head % HEADS_V
    head_qk = head // HEADS_V * HEADS_QK + hv // (HEADS_V // HEADS_QK)

    cols = tl.arange(0, DIM)
    rows = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    tile = (head * DIM + rows[:, None]) * DIM + cols[None, :]  # (BLOCK_V, DIM)

    if HAS_STATE:
        s = tl.load(state + tile)
    else:
        s = tl.zeros((BLOCK_V, DIM), dtype=tl.float32)
    key = tl.load(k + head_qk * DIM + cols).to(tl.float32)
    query = tl.load(q + head_qk * DIM + cols).to(tl.float32)
    value = tl.load(v + head * DIM + rows).to(tl.float32)

    x = tl.load(a + head).to(tl.float32) + tl.load(dt_bias + hv)
    softplus = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))  # log(1 + e^x) without overflow
    g = tl.exp(-tl.exp(tl.load(a_log + hv)) * softplus)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b + head).to(tl.float32)))

    s = g * s
    delta = beta * (value - tl.sum(s * key[None, :], axis=1))
    s += delta[:, None] * key[None, :]
    tl.store(new_state + tile, s)
    tl.store(output + head * DIM + rows, (scale * tl.sum(s * query[None, :], axis=1)).to(tl.bfloat16))


def kernel(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    batch = q.shape[0]
    if batch == 0:
        return
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    for name, t in (("q", q), ("k", k), ("v", v), ("a", a), ("b", b), ("output", output), ("new_state", new_state)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    if state is not None and not state.is_contiguous():
        raise ValueError("state: not contiguous")
    decode_kernel[(DIM // BLOCK_V, batch * HEADS_V)](
        q, k, v, q if state is None else state, A_log, a, dt_bias, b, scale, output, new_state,
        HAS_STATE=state is not None, HEADS_QK=HEADS_QK, HEADS_V=HEADS_V, DIM=DIM, BLOCK_V=BLOCK_V, num_warps=4)

"""Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last), in Triton.

    g      = exp(-exp(A_log) * softplus(a + dt_bias))
    beta   = sigmoid(b)
    delta  = beta * (v - g * (S k))
    S'     = g * S + delta k^T
    output = scale * (g * (S q) + delta * (k . q))

Shapes and dtypes as in the definition; arithmetic in float32. One program updates BLOCK_V rows of one head's state in
one pass. state None means zeros; scale None or 0 means 1/sqrt(128). Destination-passing: the last two arguments are
written.
"""

import math

import torch
import triton
import triton.language as tl

HEADS_QK = 4
HEADS_V = 8
DIM = 128


@triton.jit
def decode_kernel(q, k, v, state, a_log, a, dt_bias, b, scale, output, new_state,
                  HAS_STATE: tl.constexpr, HEADS_QK: tl.constexpr, HEADS_V: tl.constexpr, DIM: tl.constexpr,
                  BLOCK_V: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)  # batch * HEADS_V + hv
    hv = head % HEADS_V
    qk_head = head // HEADS_V * HEADS_QK + hv // (HEADS_V // HEADS_QK)

    cols = tl.arange(0, DIM)
    rows = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    tile = head * DIM * DIM + rows[:, None] * DIM + cols[None, :]  # (BLOCK_V, DIM)

    if HAS_STATE:
        s = tl.load(state + tile)
    else:
        s = tl.zeros((BLOCK_V, DIM), dtype=tl.float32)
    key = tl.load(k + qk_head * DIM + cols).to(tl.float32)
    query = tl.load(q + qk_head * DIM + cols).to(tl.float32)
    value = tl.load(v + head * DIM + rows).to(tl.float32)

    x = tl.load(a + head).to(tl.float32) + tl.load(dt_bias + hv)
    # log(1 + e^x) without overflow.
    softplus = tl.where(x > 20.0, x, tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))
    decay = tl.exp(-tl.exp(tl.load(a_log + hv)) * softplus)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b + head).to(tl.float32)))

    sk = tl.sum(s * key[None, :], axis=1)
    sq = tl.sum(s * query[None, :], axis=1)
    kq = tl.sum(key * query, axis=0)
    delta = beta * (value - decay * sk)

    tl.store(output + head * DIM + rows, (scale * (decay * sq + delta * kq)).to(tl.bfloat16))
    tl.store(new_state + tile, decay * s + delta[:, None] * key[None, :])


def kernel(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    batch = q.shape[0]
    if batch == 0:
        return
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    for name, t in (("q", q), ("k", k), ("v", v), ("a", a), ("b", b), ("output", output), ("new_state", new_state)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    block_v = 8
    num_warps = 8 if batch <= 4 else 4
    decode_kernel[(DIM // block_v, batch * HEADS_V)](
        q, k, v, q if state is None else state, A_log, a, dt_bias, b, scale, output, new_state,
        HAS_STATE=state is not None, HEADS_QK=HEADS_QK, HEADS_V=HEADS_V, DIM=DIM, BLOCK_V=block_v,
        num_warps=num_warps)

"""Gated delta rule over whole sequences, k-last state (definition [[.Definition]]), in Triton.

For each token of a sequence, in order, with S the state of a head before it:

    g      = exp(-exp(A_log) * softplus(a + dt_bias))
    beta   = sigmoid(b)
    old    = g * (S k)
    S      = g * S + beta * (v - old) k^T
    output = scale * (S q)

q, k (L, HQ, 128) bfloat16; v, output (L, HV, 128) bfloat16; state, new_state (N, HV, 128, 128) float32 as (n, hv, v, k); A_log,
dt_bias (HV) float32; a, b (L, HV) bfloat16; cu_seqlens (N + 1) int64: sequence n holds tokens cu_seqlens[n] to
cu_seqlens[n + 1] - 1. state None means zeros; scale None or 0 means 1/sqrt(128); a sequence without tokens has a new state of
zeros. Arithmetic is float32. Destination-passing: the last two arguments are written.

One program keeps BLOCK_V rows of one head's state from the first token of a sequence to the last. Where to begin: the
chunked form of the delta rule turns 64 or more tokens into a few matrix products (tl.dot).
"""

import math

import torch
import triton
import triton.language as tl

HEADS_QK = [[axis "num_q_heads"]]
HEADS_V = [[axis "num_v_heads"]]
DIM = 128
BLOCK_V = 64


@triton.jit
def prefill_kernel(q, k, v, state, a_log, a, dt_bias, b, cu_seqlens, scale, output, new_state, HAS_STATE: tl.constexpr,
                   HEADS_QK: tl.constexpr, HEADS_V: tl.constexpr, DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)  # n * HEADS_V + hv
    n = head // HEADS_V
    hv = head % HEADS_V
    begin = tl.load(cu_seqlens + n)
    end = tl.load(cu_seqlens + n + 1)

    cols = tl.arange(0, DIM)
    rows = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    tile = (head * DIM + rows[:, None]) * DIM + cols[None, :]  # (BLOCK_V, DIM)
    s = tl.zeros((BLOCK_V, DIM), dtype=tl.float32)
    if HAS_STATE:
        if end > begin:
            s = tl.load(state + tile)
    rate = -tl.exp(tl.load(a_log + hv))
    bias = tl.load(dt_bias + hv)

    for t in range(begin, end):
        head_qk = t * HEADS_QK + hv // (HEADS_V // HEADS_QK)
        head_v = t * HEADS_V + hv
        key = tl.load(k + head_qk * DIM + cols).to(tl.float32)
        query = tl.load(q + head_qk * DIM + cols).to(tl.float32)
        value = tl.load(v + head_v * DIM + rows).to(tl.float32)
        x = tl.load(a + head_v).to(tl.float32) + bias
        softplus = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))  # log(1 + e^x) without overflow
        g = tl.exp(rate * softplus)
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b + head_v).to(tl.float32)))

        s = g * s
        delta = beta * (value - tl.sum(s * key[None, :], axis=1))
        s += delta[:, None] * key[None, :]
        tl.store(output + head_v * DIM + rows, (scale * tl.sum(s * query[None, :], axis=1)).to(tl.bfloat16))

    tl.store(new_state + tile, s)


def kernel(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale, output, new_state):
    sequences = new_state.shape[0]
    if sequences == 0:
        return
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    for name, t in (("q", q), ("k", k), ("v", v), ("a", a), ("b", b), ("output", output), ("new_state", new_state)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    if state is not None and not state.is_contiguous():
        raise ValueError("state: not contiguous")
    prefill_kernel[(DIM // BLOCK_V, sequences * HEADS_V)](
        q, k, v, q if state is None else state, A_log, a, dt_bias, b, cu_seqlens, scale, output, new_state,
        HAS_STATE=state is not None, HEADS_QK=HEADS_QK, HEADS_V=HEADS_V, DIM=DIM, BLOCK_V=BLOCK_V, num_warps=8)

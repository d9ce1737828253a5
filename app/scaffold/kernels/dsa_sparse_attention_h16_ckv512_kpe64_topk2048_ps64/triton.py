"""Sparse attention over a paged cache of compressed keys and values, DeepSeek-V3.2 (definition
dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64), in Triton.

For each token t and head h, over the entries j of sparse_indices[t] that are not -1:

    logit[j] = sm_scale * (q_nope . ckv[j] + q_pe . kpe[j])
    output   = sum of softmax(logit)[j] * ckv[j]
    lse      = log2(sum of exp(logit[j]))

q_nope, output (T, 16, 512), q_pe (T, 16, 64), ckv_cache (P, 64, 512), kpe_cache (P, 64, 64), all bfloat16; sparse_indices
(T, 2048) int32, page * 64 + entry, or -1; lse (T, 16) float32. A token without entries has an output of zeros and an lse of
-inf. Destination-passing: the last two arguments are written.

One program has all heads of a token and goes through its entries BLOCK at a time, with a running maximum and sum (online
softmax), so that each entry is read once. Products are of bfloat16, sums float32. Where to begin: with few tokens most of the
GPU is idle; spread a token's entries over several programs and combine their results by lse.
"""

import torch
import triton
import triton.language as tl

HEADS = 16
DIM_C = 512
DIM_PE = 64
TOPK = 2048
BLOCK = 32


@triton.jit
def attention_kernel(q_nope, q_pe, ckv, kpe, indices, sm_scale, output, lse, HEADS: tl.constexpr, DIM_C: tl.constexpr,
                     DIM_PE: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr):
    LOG2E: tl.constexpr = 1.4426950408889634
    t = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS)
    dims_c = tl.arange(0, DIM_C)
    dims_pe = tl.arange(0, DIM_PE)
    row = t * HEADS + heads
    qn = tl.load(q_nope + row[:, None] * DIM_C + dims_c[None, :]).to(tl.bfloat16)  # (HEADS, DIM_C)
    qp = tl.load(q_pe + row[:, None] * DIM_PE + dims_pe[None, :]).to(tl.bfloat16)  # (HEADS, DIM_PE)

    largest = tl.full((HEADS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((HEADS,), dtype=tl.float32)
    acc = tl.zeros((HEADS, DIM_C), dtype=tl.float32)
    for begin in range(0, TOPK, BLOCK):
        e = tl.load(indices + t * TOPK + begin + tl.arange(0, BLOCK)).to(tl.int64)
        valid = e >= 0
        keys = tl.load(ckv + e[:, None] * DIM_C + dims_c[None, :], mask=valid[:, None], other=0.0).to(tl.bfloat16)
        positions = tl.load(kpe + e[:, None] * DIM_PE + dims_pe[None, :], mask=valid[:, None], other=0.0).to(tl.bfloat16)
        logits = tl.dot(qn, tl.trans(keys)) + tl.dot(qp, tl.trans(positions))
        logits = tl.where(valid[None, :], logits * (sm_scale * LOG2E), float("-inf"))  # (HEADS, BLOCK), to base 2

        new_largest = tl.maximum(largest, tl.max(logits, axis=1))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # without a valid entry so far, inf - inf is NaN
        weights = tl.exp2(logits - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), keys)
        largest = new_largest

    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(output + row[:, None] * DIM_C + dims_c[None, :], acc.to(tl.bfloat16))
    some = tl.where(total > 0.0, total, 1.0)
    tl.store(lse + row, tl.where(total > 0.0, largest + tl.log2(some), float("-inf")))


def kernel(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale, output, lse):
    tokens = q_nope.shape[0]
    if tokens == 0:
        return
    for name, t in (("q_nope", q_nope), ("q_pe", q_pe), ("ckv_cache", ckv_cache), ("kpe_cache", kpe_cache),
                    ("sparse_indices", sparse_indices), ("output", output), ("lse", lse)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    attention_kernel[(tokens,)](
        q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale, output, lse,
        HEADS=HEADS, DIM_C=DIM_C, DIM_PE=DIM_PE, TOPK=TOPK, BLOCK=BLOCK, num_warps=4, num_stages=2)

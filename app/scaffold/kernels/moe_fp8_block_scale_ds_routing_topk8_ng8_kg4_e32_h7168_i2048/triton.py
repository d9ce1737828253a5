"""Mixture of experts with fp8 block scales and DeepSeek-V3 routing, one rank of an expert-parallel group (definition
moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048), in Triton.

For each token:

    s       = sigmoid(routing_logits)                256 experts in 8 groups of 32
    biased  = s + routing_bias                       what the choice goes by
    groups  = the 4 with the largest sum of their two largest biased scores
    experts = the 8 with the largest biased scores in those groups
    w       = s / (sum of s over the 8 + 1e-20) * routed_scaling_factor
    output  = sum over those of the 8 that are local (local_expert_offset to + 31) of
              w * W2 (silu(W13[2048:] x) * (W13[:2048] x))

routing_logits (T, 256) float32; routing_bias (256) bfloat16; hidden_states (T, 7168) float8_e4m3fn with scales (56, T);
gemm1_weights (32, 4096, 7168) float8_e4m3fn with scales (32, 32, 56); gemm2_weights (32, 7168, 2048) float8_e4m3fn with scales
(32, 56, 16); scales float32, one for each block of 128. Destination-passing: the last argument, output (T, 7168) bfloat16,
is written.

PyTorch routes and sorts the (token, rank) pairs by expert; two kernels do the products, a program for each BLOCK_M pairs of an
expert and BLOCK_N rows of its weights. fp8 numbers are multiplied as bfloat16, which holds them exactly, and so
are activations; sums are float32.
Where to begin: route in one kernel; tl.dot of fp8 with fp8; activations as fp8 with scales of their own.
"""

import torch
import triton
import triton.language as tl

EXPERTS = 256
LOCAL = 32
HIDDEN = 7168
INTER = 2048
TOPK = 8
GROUPS = 8
KEPT_GROUPS = 4
BLOCK = 128  # of the scales
BLOCK_M = 16
BLOCK_N = 128  # rows of weights of a program
CHUNK = 2048  # tokens of one pass, which bounds the memory in between


@triton.jit
def gemm1_kernel(hidden, hidden_scale, weights, scales, pairs, ends, activation, tokens, first, HIDDEN: tl.constexpr,
                 INTER: tl.constexpr, TOPK: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr):
    """activation = silu(W13[2048:] x) * (W13[:2048] x) for BLOCK_M pairs of one expert and BLOCK_N of its rows."""
    expert = tl.program_id(2).to(tl.int64)
    begin = tl.load(ends + expert) + tl.program_id(1) * BLOCK_M
    end = tl.load(ends + expert + 1)
    if begin < end:
        m = begin + tl.arange(0, BLOCK_M)
        pair = tl.load(pairs + m, mask=m < end, other=0)
        token = first + pair // TOPK
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK)
        up_w = weights + (expert * 2 * INTER + n[:, None]) * HIDDEN + k[None, :]  # (BLOCK_N, BLOCK of k)
        gate_w = up_w + INTER * HIDDEN
        up_s = scales + (expert * (2 * INTER // BLOCK) + n // BLOCK) * (HIDDEN // BLOCK)
        gate_s = up_s + (INTER // BLOCK) * (HIDDEN // BLOCK)
        up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(0, HIDDEN // BLOCK):
            x = tl.load(hidden + token[:, None] * HIDDEN + block * BLOCK + k[None, :]).to(tl.bfloat16)
            x_scale = tl.load(hidden_scale + block * tokens + token)[:, None]
            w = tl.load(up_w + block * BLOCK).to(tl.bfloat16)
            up += tl.dot(x, tl.trans(w)) * (x_scale * tl.load(up_s + block)[None, :])
            w = tl.load(gate_w + block * BLOCK).to(tl.bfloat16)
            gate += tl.dot(x, tl.trans(w)) * (x_scale * tl.load(gate_s + block)[None, :])
        value = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(activation + pair[:, None] * INTER + n[None, :], value, mask=(m < end)[:, None])


@triton.jit
def gemm2_kernel(activation, weights, scales, pairs, ends, pair_weight, sums, HIDDEN: tl.constexpr, INTER: tl.constexpr,
                 TOPK: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Adds weight * W2 activation to the sums of the pairs' tokens, for BLOCK_M pairs of one expert and BLOCK_N of its rows."""
    expert = tl.program_id(2).to(tl.int64)
    begin = tl.load(ends + expert) + tl.program_id(1) * BLOCK_M
    end = tl.load(ends + expert + 1)
    if begin < end:
        m = begin + tl.arange(0, BLOCK_M)
        pair = tl.load(pairs + m, mask=m < end, other=0)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK)
        w = weights + (expert * HIDDEN + n[:, None]) * INTER + k[None, :]  # (BLOCK_N, BLOCK of k)
        s = scales + (expert * (HIDDEN // BLOCK) + n // BLOCK) * (INTER // BLOCK)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(0, INTER // BLOCK):
            x = tl.load(activation + pair[:, None] * INTER + block * BLOCK + k[None, :]).to(tl.bfloat16)
            total += tl.dot(x, tl.trans(tl.load(w + block * BLOCK).to(tl.bfloat16))) * tl.load(s + block)[None, :]
        total *= tl.load(pair_weight + pair)[:, None]
        tl.atomic_add(sums + (pair // TOPK)[:, None] * HIDDEN + n[None, :], total, mask=(m < end)[:, None])


def route(logits, bias, factor):
    """The experts of each token, (T, 8), and their weights, (T, 8)."""
    tokens = logits.shape[0]
    s = torch.sigmoid(logits)
    biased = s + bias.float()
    grouped = biased.view(tokens, GROUPS, EXPERTS // GROUPS)
    group_scores = grouped.topk(2, dim=2).values.sum(dim=2)  # (T, 8)
    kept = group_scores.topk(KEPT_GROUPS, dim=1).indices  # (T, 4)
    dropped = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
    biased = grouped.masked_fill(dropped[:, :, None], torch.finfo(torch.float32).min).view(tokens, EXPERTS)
    chosen = biased.topk(TOPK, dim=1).indices
    weights = s.gather(1, chosen)
    return chosen, weights / (weights.sum(dim=1, keepdim=True) + 1e-20) * factor


def kernel(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights,
           gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    tokens = routing_logits.shape[0]
    device = output.device
    for name, t in (("hidden_states", hidden_states), ("hidden_states_scale", hidden_states_scale),
                    ("gemm1_weights", gemm1_weights), ("gemm1_weights_scale", gemm1_weights_scale),
                    ("gemm2_weights", gemm2_weights), ("gemm2_weights_scale", gemm2_weights_scale), ("output", output)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    bounds = torch.arange(LOCAL + 1, device=device)
    for first in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - first)
        chosen, weights = route(routing_logits[first : first + count], routing_bias, routed_scaling_factor)
        local = chosen.flatten() - local_expert_offset
        local = torch.where((local >= 0) & (local < LOCAL), local, LOCAL)  # pairs of other ranks come last
        local, pairs = torch.sort(local, stable=True)
        ends = torch.searchsorted(local, bounds)  # pairs[ends[e]:ends[e + 1]] belong to expert e
        activation = torch.empty(count * TOPK, INTER, dtype=torch.float32, device=device)
        sums = torch.zeros(count, HIDDEN, dtype=torch.float32, device=device)
        tiles = triton.cdiv(count, BLOCK_M)  # a token has an expert once
        gemm1_kernel[(INTER // BLOCK_N, tiles, LOCAL)](
            hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, pairs, ends, activation, tokens, first,
            HIDDEN=HIDDEN, INTER=INTER, TOPK=TOPK, BLOCK=BLOCK, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4)
        gemm2_kernel[(HIDDEN // BLOCK_N, tiles, LOCAL)](
            activation, gemm2_weights, gemm2_weights_scale, pairs, ends, weights, sums,
            HIDDEN=HIDDEN, INTER=INTER, TOPK=TOPK, BLOCK=BLOCK, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4)
        output[first : first + count] = sums

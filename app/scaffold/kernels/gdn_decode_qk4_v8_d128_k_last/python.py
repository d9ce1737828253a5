"""Gated delta rule, one decode step, k-last state (definition gdn_decode_qk4_v8_d128_k_last), in PyTorch.

    g      = exp(-exp(A_log) * softplus(a + dt_bias))
    beta   = sigmoid(b)
    old    = g * (S k)
    S'     = g * S + beta * (v - old) k^T
    output = scale * (S' q)

q, k (B, 1, 4, 128) bfloat16; v (B, 1, 8, 128) bfloat16; state (B, 8, 128, 128) float32 as (b, hv, v, k), or None: zeros;
A_log, dt_bias (8) float32; a, b (B, 1, 8) bfloat16; scale None or 0 means 1/sqrt(128). Returns output (B, 1, 8, 128)
bfloat16 and new_state like state. Arithmetic is float32.

Where to begin: each line below is a kernel of its own that reads and writes the state. One kernel that reads it once and
writes it once is the least that there can be.
"""

import math

import torch
import torch.nn.functional as F

HEADS_V = 8
DIM = 128


@torch.no_grad()
def kernel(q, k, v, state, A_log, a, dt_bias, b, scale):
    batch = q.shape[0]
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    repeat = HEADS_V // q.shape[2]  # value heads of one query and key head
    query = q[:, 0].float().repeat_interleave(repeat, dim=1)  # (B, 8, 128)
    key = k[:, 0].float().repeat_interleave(repeat, dim=1)  # (B, 8, 128)
    value = v[:, 0].float()  # (B, 8, 128)
    if state is None:
        state = torch.zeros(batch, HEADS_V, DIM, DIM, dtype=torch.float32, device=q.device)

    g = torch.exp(-torch.exp(A_log) * F.softplus(a[:, 0].float() + dt_bias))  # (B, 8)
    beta = torch.sigmoid(b[:, 0].float())  # (B, 8)

    decayed = g[:, :, None, None] * state
    old = torch.einsum("bhvk,bhk->bhv", decayed, key)
    delta = beta[:, :, None] * (value - old)
    new_state = decayed + delta[:, :, :, None] * key[:, :, None, :]
    output = scale * torch.einsum("bhvk,bhk->bhv", new_state, query)
    return output.unsqueeze(1).to(torch.bfloat16), new_state

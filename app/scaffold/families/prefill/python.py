"""Gated delta rule over whole sequences, k-last state (definition [[.Definition]]), in PyTorch.

For each token of a sequence, in order, with S the state of a head before it:

    g      = exp(-exp(A_log) * softplus(a + dt_bias))
    beta   = sigmoid(b)
    old    = g * (S k)
    S      = g * S + beta * (v - old) k^T
    output = scale * (S q)

q, k (L, HQ, 128) bfloat16; v (L, HV, 128) bfloat16; state (N, HV, 128, 128) float32 as (n, hv, v, k), or None: zeros; A_log,
dt_bias (HV) float32; a, b (L, HV) bfloat16; cu_seqlens (N + 1) int64: sequence n holds tokens cu_seqlens[n] to
cu_seqlens[n + 1] - 1; scale None or 0 means 1/sqrt(128). Returns output (L, HV, 128) bfloat16 and new_state (N, HV, 128, 128)
float32, zeros for a sequence without tokens. Arithmetic is float32.

Where to begin: this takes one step for each token of the longest sequence, for all sequences at once. The chunked form of the
delta rule turns 64 or more tokens into a few matrix products.
"""

import math

import torch
import torch.nn.functional as F

HEADS_V = [[axis "num_v_heads"]]
DIM = 128


@torch.no_grad()
def kernel(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale):
    device = q.device
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    repeat = HEADS_V // q.shape[1]  # value heads of one query and key head
    query = q.float().repeat_interleave(repeat, dim=1)  # (L, HV, 128)
    key = k.float().repeat_interleave(repeat, dim=1)  # (L, HV, 128)
    value = v.float()  # (L, HV, 128)
    g = torch.exp(-torch.exp(A_log) * F.softplus(a.float() + dt_bias))  # (L, HV)
    beta = torch.sigmoid(b.float())  # (L, HV)

    cuts = cu_seqlens.tolist()
    lengths = [max(0, end - begin) for begin, end in zip(cuts, cuts[1:])]
    output = torch.zeros(v.shape, dtype=torch.bfloat16, device=device)
    new_state = torch.zeros(len(lengths), HEADS_V, DIM, DIM, dtype=torch.float32, device=device)

    # The longest sequences first: those that still run at step i are then the first ones.
    order = sorted((n for n in range(len(lengths)) if lengths[n] > 0), key=lambda n: -lengths[n])
    if not order:
        return output, new_state
    rows = torch.tensor(order, device=device)
    begins = torch.tensor([cuts[n] for n in order], device=device)
    s = new_state[rows] if state is None else state[rows]
    running = len(order)
    for i in range(lengths[order[0]]):
        while lengths[order[running - 1]] <= i:
            running -= 1
        t = begins[:running] + i
        decayed = g[t][:, :, None, None] * s[:running]
        old = torch.einsum("nhvk,nhk->nhv", decayed, key[t])
        delta = beta[t][:, :, None] * (value[t] - old)
        s[:running] = decayed + delta[:, :, :, None] * key[t][:, :, None, :]
        output[t] = (scale * torch.einsum("nhvk,nhk->nhv", s[:running], query[t])).to(torch.bfloat16)
    new_state[rows] = s
    return output, new_state

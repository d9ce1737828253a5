"""The chunked gated delta rule of flash-linear-attention: five to six Triton kernels a call."""

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule


@torch.no_grad()
def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale, output, new_state):
    g = -torch.exp(A_log) * torch.nn.functional.softplus(a.float() + dt_bias)
    o, last = chunk_gated_delta_rule(q[None], k[None], v[None], g[None], torch.sigmoid(b.float())[None], scale or None, state, True,
                                     cu_seqlens=cu_seqlens, state_v_first=True)
    output.copy_(o[0])
    new_state.copy_(last)

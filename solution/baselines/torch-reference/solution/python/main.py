import math

import torch
import torch.nn.functional as F


@torch.no_grad()
def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    """One step of the gated delta rule for every sequence and value head.

    A value head keeps a matrix S with one row for each value channel and one column for each key channel. Its query
    and key are those of the query head that it shares with its neighbours. In float32:

        decay  = exp(-exp(A_log) * softplus(a + dt_bias))
        faded  = decay * S
        delta  = sigmoid(b) * (v - faded k)
        S_new  = faded + delta k^T
        output = scale * S_new q

    A state of None is zero; a scale of None or 0 is 1 / sqrt(head_size).
    """
    assert q.shape[1] == 1, "decoding takes one token for each sequence"
    group = v.shape[2] // q.shape[2]
    if not scale:
        scale = 1.0 / math.sqrt(q.shape[-1])

    decay = torch.exp(-torch.exp(A_log.float()) * F.softplus(a[:, 0].float() + dt_bias.float()))
    beta = torch.sigmoid(b[:, 0].float())
    query = q[:, 0].float().repeat_interleave(group, dim=1)
    key = k[:, 0].float().repeat_interleave(group, dim=1)
    value = v[:, 0].float()
    if state is None:
        state = value.new_zeros(*value.shape, key.shape[-1])

    faded = decay[..., None, None] * state.float()
    delta = beta[..., None] * (value - torch.einsum("bhvk,bhk->bhv", faded, key))
    new_state = faded + torch.einsum("bhv,bhk->bhvk", delta, key)
    output = scale * torch.einsum("bhvk,bhk->bhv", new_state, query)
    return output.to(torch.bfloat16).unsqueeze(1), new_state

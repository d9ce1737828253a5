[[- $state := or (and (has "state") "state") "initial_state" -]]
[[- $unit := or (named "mtp") (named "l2norm") -]]
[[- $vk := or (and (named "v_last") "kv") "vk" -]]
"""[[about ""]]

Returns the outputs that are no argument. Where to begin: each line of the loop is a kernel of its own that reads and writes
the states. One kernel that reads them once and writes them once is the least that there can be.
"""

import math

import torch
import torch.nn.functional as F

DIM = [[axis "head_size"]]
[[- if $unit]]


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
[[- end]]


@torch.no_grad()
def kernel([[upto "A_log"]],
           [[from "A_log"]]):
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    repeat = v.shape[2] // q.shape[2]  # value heads of one query and key head
    query = [[if $unit]]unit(q.float())[[else]]q.float()[[end]].repeat_interleave(repeat, dim=2)  # (B, T, HV, 128)
    key = [[if $unit]]unit(k.float())[[else]]k.float()[[end]].repeat_interleave(repeat, dim=2)
    g = torch.exp(-torch.exp(A_log) * F.softplus(a.float() + dt_bias))  # (B, T, HV)
    beta = torch.sigmoid(b.float())

    output = torch.zeros_like(v)
[[- if has "intermediate_states"]]
    intermediate_states = torch.zeros(*v.shape, DIM, dtype=[[$state]].dtype, device=v.device)
[[- end]]
[[- if has "initial_state_indices"]]
    rows = (initial_state_indices >= 0).nonzero()[:, 0]  # rows without padding
    s = initial_state[initial_state_indices[rows].long()].float()
[[- else]]
    rows = slice(None)
    s = [[if optional $state]]torch.zeros(v.shape[0], v.shape[2], DIM, DIM, device=v.device) if state is None else [[end]]state.float()
[[- end]]
    for t in range(q.shape[1]):
        s = g[rows, t][:, :, None, None] * s
        old = torch.einsum("bh[[$vk]],bhk->bhv", s, key[rows, t])
        delta = beta[rows, t][:, :, None] * (v[rows, t].float() - old)
        s = s + torch.einsum("bhv,bhk->bh[[$vk]]", delta, key[rows, t])
        output[rows, t] = (scale * torch.einsum("bh[[$vk]],bhk->bhv", s, query[rows, t])).to(output.dtype)
[[- if has "intermediate_states"]]
        intermediate_states[rows, t] = s.to(initial_state.dtype)
[[- else if has "ssm_state_indices"]]
        to = ssm_state_indices[rows, t].long()
        initial_state[to[to >= 0]] = s[to >= 0].to(initial_state.dtype)
[[- end]]
[[- if has "output_state_indices"]]
    to = output_state_indices[rows].long()
    initial_state[to[to >= 0]] = s[to >= 0].to(initial_state.dtype)
[[- else if and (has "final_state") (not (has "ssm_state_indices"))]]
    initial_state[initial_state_indices[rows].long()] = s.to(initial_state.dtype)
[[- end]]
    return output[[if has "new_state"]], [[if optional $state]]s[[else]]s.to(state.dtype)[[end]][[else if has "intermediate_states"]], intermediate_states[[end]]

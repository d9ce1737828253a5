"""Stands in for flashinfer.gdn_decode 0.7.2 in tests without a GPU: its signatures, what it refuses, and what it does with
padding; the recurrence in float32."""

import torch
import torch.nn.functional as F


def steps(q, k, v, state, A_log, a, dt_bias, b, scale, output, l2norm, read, write=None, each=None, update=True, skips=True):
    """Rows of negative slots are skipped or, as bfloat16 states have it, use slot 0."""
    assert q.dtype == torch.bfloat16 and A_log.dtype == torch.float32 and output.shape == v.shape and output.dtype == q.dtype
    write = read if write is None else write
    assert all(x.dtype in (torch.int32, torch.int64) and x.shape == (len(q),) for x in (read, write))
    unit = (lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)) if l2norm else (lambda x: x)
    group = v.shape[2] // q.shape[2]
    before = state.clone()
    for n, (slot, to) in enumerate(zip(read.tolist(), write.tolist())):
        if slot < 0 and skips:
            continue
        s = before[max(slot, 0)].float()
        for t in range(q.shape[1]):
            query, key = (unit(x[n, t].float()).repeat_interleave(group, 0) for x in (q, k))
            decay = torch.exp(-torch.exp(A_log) * F.softplus(a[n, t].float() + dt_bias))
            s = decay[:, None, None] * s
            delta = torch.sigmoid(b[n, t].float())[:, None] * (v[n, t].float() - (s @ key[:, :, None])[..., 0])
            s = s + delta[:, :, None] * key[:, None, :]
            output[n, t] = ((q.shape[-1] ** -0.5 if scale is None else scale) * (s @ query[:, :, None])[..., 0]).to(output.dtype)
            if each is not None:
                each[n, t] = s.to(each.dtype)
        if update and (to >= 0 or not skips):
            state[max(to, 0)] = s.to(state.dtype)


def gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, backend="auto"):
    assert state.dtype == torch.float32 and q.shape[1] == 1
    turned = state.transpose(-1, -2).contiguous()
    steps(q, k, v, turned, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, torch.arange(len(q)))
    state.copy_(turned.transpose(-1, -2))
    return output, state


def gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True,
                                         initial_state=None, initial_state_indices=None, output_state_indices=None,
                                         intermediate_states_buffer=None, disable_state_update=False, backend="auto"):
    pool = initial_state is not None
    assert pool == (initial_state_indices is not None) and (pool or output_state_indices is None) and pool == (state is None)
    state = initial_state if pool else state
    bf16 = state.dtype == torch.bfloat16
    assert bf16 or q.shape[1] == 1 and intermediate_states_buffer is None and not disable_state_update
    assert q.shape[1] > 1 or intermediate_states_buffer is None
    if not bf16 and pool:
        output[initial_state_indices < 0] = 0
        if output_state_indices is not None:
            output_state_indices = output_state_indices.clamp(min=0)
    read = initial_state_indices if pool else torch.arange(len(q))
    steps(q, k, v, state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, read, output_state_indices, intermediate_states_buffer,
          not disable_state_update, not bf16)
    return output, state


def gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,
                         intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True,
                         output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None,
                         replayssm_g=None, replayssm_beta=None):
    assert initial_state.dtype == torch.float32 and disable_state_update is not None and ssm_state_indices is None
    steps(q, k, v, initial_state, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, initial_state_indices, output_state_indices,
          intermediate_states_buffer, not disable_state_update)
    return output, initial_state

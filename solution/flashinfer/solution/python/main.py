"""FlashInfer's functions of the decode family (flashinfer.gdn_decode, 0.7.2), as the definitions want them called.

What is not theirs, and is timed with them:

- A state that the definition wants in new_state is copied there first, and updated in place.
- With float32 states gated_delta_rule_mtp leaves the output of padding as it was: output is filled with zeros first where
  there may be padding.
- The one state after one token, bfloat16, is taken from the pool and updated, since only calls of several tokens keep states.

With bfloat16 states these functions read and write slot 0 of the pool for padding, so that workloads with padding come out
wrong. They write outside of the pool where the slot of a token's state is -1, so that gdn_mtp_scatter_... is not here.
"""

import functools

import torch
from flashinfer.gdn_decode import gated_delta_rule_decode, gated_delta_rule_decode_pretranspose, gated_delta_rule_mtp


@functools.lru_cache(maxsize=None)
def rows(batch, device):
    return torch.arange(batch, dtype=torch.int32, device=device)


def dense(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state, l2norm):
    if state is None:
        new_state.zero_()
    else:
        new_state.copy_(state)
    if q.shape[1] > 1 and new_state.dtype == torch.float32:
        gated_delta_rule_mtp(q, k, v, new_state, rows(len(q), q.device), A_log, a, dt_bias, b, scale or None, output,
                             disable_state_update=False, use_qk_l2norm=l2norm)
    else:
        gated_delta_rule_decode_pretranspose(q, k, v, new_state, A_log, a, dt_bias, b, scale or None, output, use_qk_l2norm=l2norm)


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    dense(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state, False)


def decode_l2norm(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    dense(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state, True)


def decode_v_last(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    new_state.copy_(state)
    gated_delta_rule_decode(q, k, v, new_state, A_log, a, dt_bias, b, scale or None, output, use_qk_l2norm=False)


def verify(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale, output, intermediate_states):
    if initial_state.dtype == torch.float32:
        gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale or None, output,
                             intermediate_states_buffer=intermediate_states, disable_state_update=True)
    elif q.shape[1] == 1:
        state = intermediate_states[:, 0]
        torch.index_select(initial_state, 0, initial_state_indices, out=state)
        gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b, scale or None, output)
    else:
        gated_delta_rule_decode_pretranspose(
            q, k, v, None, A_log, a, dt_bias, b, scale or None, output, initial_state=initial_state,
            initial_state_indices=initial_state_indices, intermediate_states_buffer=intermediate_states, disable_state_update=True)


def output_only(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale, output):
    output.zero_()
    gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale or None, output,
                         disable_state_update=True)


def update(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale, output):
    update_elsewhere(q, k, v, initial_state, initial_state_indices, None, A_log, a, dt_bias, b, scale, output)


def update_elsewhere(q, k, v, initial_state, initial_state_indices, output_state_indices, A_log, a, dt_bias, b, scale, output):
    # With one token and float32 states the first would write slot 0 for an output slot of -1, the second writes none.
    if initial_state.dtype == torch.bfloat16 or q.shape[1] == 1 and output_state_indices is None:
        gated_delta_rule_decode_pretranspose(
            q, k, v, None, A_log, a, dt_bias, b, scale or None, output, initial_state=initial_state,
            initial_state_indices=initial_state_indices, output_state_indices=output_state_indices)
    else:
        output.zero_()
        gated_delta_rule_mtp(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale or None, output,
                             disable_state_update=False, output_state_indices=output_state_indices)

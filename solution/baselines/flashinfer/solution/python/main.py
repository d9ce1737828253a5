"""FlashInfer's decode kernel of the gated delta rule, as the definition wants it called: queries and keys as they are
(no L2 norm), and the state, which the kernel updates in place, copied to new_state first.
"""

from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose


def run(q, k, v, state, A_log, a, dt_bias, b, scale, output, new_state):
    if state is None:
        new_state.zero_()
    else:
        new_state.copy_(state)
    gated_delta_rule_decode_pretranspose(q, k, v, new_state, A_log, a, dt_bias, b, scale=scale or None, output=output, use_qk_l2norm=False)

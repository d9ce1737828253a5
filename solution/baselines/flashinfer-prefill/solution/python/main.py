"""FlashInfer's prefill kernels of the gated delta rule. They take the gates as decay and update rate, in float32."""

import torch
from flashinfer.gdn_prefill import chunk_gated_delta_rule


def run(q, k, v, state, A_log, a, dt_bias, b, cu_seqlens, scale, output, new_state):
    decay = torch.exp(-torch.exp(A_log) * torch.nn.functional.softplus(a.float() + dt_bias))
    chunk_gated_delta_rule(q, k, v, decay, torch.sigmoid(b.float()), scale or None, state, True, cu_seqlens, output=output,
                           output_state=new_state)

"""Mixture of experts with fp8 block scales and DeepSeek-V3 routing, one rank of an expert-parallel group (definition
moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048), in PyTorch.

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
(32, 56, 16); scales float32, one for each block of 128. Returns output (T, 7168) bfloat16. Arithmetic is float32.

Where to begin: the weights of an expert are made float32 before they are multiplied, four times their bytes. Kernels that take
fp8 as it is, and all experts in one launch (a grouped product), are the next step.
"""

import torch
import torch.nn.functional as F

BLOCK = 128
TOPK = 8
GROUPS = 8
KEPT_GROUPS = 4


def dequantized(weight, scale):
    """A matrix times the scales of its blocks of 128 x 128, as float32."""
    rows, cols = weight.shape
    blocks = weight.float().view(rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    return (blocks * scale[:, None, :, None]).view(rows, cols)


def route(logits, bias, factor):
    """The experts of each token, (T, 8), and their weights, (T, 8)."""
    tokens, experts = logits.shape
    s = torch.sigmoid(logits)
    biased = s + bias.float()
    grouped = biased.view(tokens, GROUPS, experts // GROUPS)
    group_scores = grouped.topk(2, dim=2).values.sum(dim=2)  # (T, 8)
    kept = group_scores.topk(KEPT_GROUPS, dim=1).indices  # (T, 4)
    dropped = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
    biased = grouped.masked_fill(dropped[:, :, None], torch.finfo(torch.float32).min).view(tokens, experts)
    chosen = biased.topk(TOPK, dim=1).indices
    weights = s.gather(1, chosen)
    return chosen, weights / (weights.sum(dim=1, keepdim=True) + 1e-20) * factor


@torch.no_grad()
def kernel(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights,
           gemm2_weights_scale, local_expert_offset, routed_scaling_factor):
    tokens, hidden = hidden_states.shape
    chosen, weights = route(routing_logits, routing_bias, routed_scaling_factor)
    x = hidden_states.float().view(tokens, hidden // BLOCK, BLOCK) * hidden_states_scale.t()[:, :, None]
    x = x.view(tokens, hidden)
    output = torch.zeros(tokens, hidden, dtype=torch.float32, device=x.device)

    for local in range(gemm1_weights.shape[0]):
        token, slot = torch.nonzero(chosen == local_expert_offset + local, as_tuple=True)
        if token.numel() == 0:
            continue
        product = x[token] @ dequantized(gemm1_weights[local], gemm1_weights_scale[local]).t()
        up, gate = product.chunk(2, dim=1)
        result = (F.silu(gate) * up) @ dequantized(gemm2_weights[local], gemm2_weights_scale[local]).t()
        output.index_add_(0, token, result * weights[token, slot][:, None])
    return output.to(torch.bfloat16)

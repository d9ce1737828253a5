"""Sparse attention over a paged cache of compressed keys and values, DeepSeek-V3.2 (definition
dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64), in PyTorch.

For each token t and head h, over the entries j of sparse_indices[t] that are not -1:

    logit[j] = sm_scale * (q_nope . ckv[j] + q_pe . kpe[j])
    output   = sum of softmax(logit)[j] * ckv[j]
    lse      = log2(sum of exp(logit[j]))

q_nope (T, 16, 512), q_pe (T, 16, 64), ckv_cache (P, 64, 512), kpe_cache (P, 64, 64), all bfloat16; sparse_indices (T, 2048)
int32, page * 64 + entry, or -1; sm_scale a float. Returns output (T, 16, 512) bfloat16 and lse (T, 16) float32; a token without
entries has an output of zeros and an lse of -inf. Arithmetic is float32.

Where to begin: the gathered keys go through memory as float32, several times. A kernel that gathers a block of entries,
multiplies it for all 16 heads and keeps a running maximum and sum (online softmax) reads them once.
"""

import math

import torch

CHUNK = 8  # tokens at a time, which bounds the memory of the gathered entries


@torch.no_grad()
def kernel(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    tokens, heads, dim = q_nope.shape
    ckv = ckv_cache.reshape(-1, dim)
    kpe = kpe_cache.reshape(-1, q_pe.shape[-1])
    output = torch.zeros(tokens, heads, dim, dtype=torch.bfloat16, device=q_nope.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q_nope.device)

    for begin in range(0, tokens, CHUNK):
        part = slice(begin, min(begin + CHUNK, tokens))
        indices = sparse_indices[part].long()  # (C, 2048)
        absent = indices < 0
        indices = indices.clamp(min=0)
        keys = ckv[indices].float()  # (C, 2048, 512)
        positions = kpe[indices].float()  # (C, 2048, 64)
        logits = torch.einsum("thd,tjd->thj", q_nope[part].float(), keys)
        logits += torch.einsum("thd,tjd->thj", q_pe[part].float(), positions)
        logits = (logits * sm_scale).masked_fill(absent[:, None, :], -math.inf)

        log_sum = torch.logsumexp(logits, dim=-1)  # (C, 16); -inf without an entry
        weights = torch.exp(logits - log_sum[:, :, None]).masked_fill(absent[:, None, :], 0.0)
        output[part] = torch.einsum("thj,tjd->thd", weights, keys).to(torch.bfloat16)
        lse[part] = log_sum / math.log(2.0)
    return output, lse

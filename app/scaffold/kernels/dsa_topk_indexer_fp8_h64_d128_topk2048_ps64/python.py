"""Top-k indexer over a paged cache of fp8 keys, DeepSeek-V3.2 (definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64), in
PyTorch.

For each sequence b and each of its seq_lens[b] tokens j:

    score[j]        = sum over heads h of weights[b, h] * max(q[b, h] . key[j], 0)
    topk_indices[b] = the 2048 tokens of the largest scores, as page * 64 + offset; -1 behind the last one of a sequence that
                      has fewer

q_index_fp8 (B, 64, 128) float8_e4m3fn; k_index_cache_fp8 (P, 64, 1, 132) int8: a page is 64 keys of 128 float8_e4m3fn, then
64 scales, float32; weights (B, 64) float32; seq_lens (B) int32; block_table (B, max_num_pages) int32: page p of a sequence.
Returns topk_indices (B, 2048) int32. Arithmetic is float32.

Where to begin: scores of one sequence after the other, with a wait for its length on the CPU. A kernel with a block for each
page of each sequence needs neither.
"""

import torch

TOPK = 2048
PAGE = 64
DIM = 128


@torch.no_grad()
def kernel(q_index_fp8, k_index_cache_fp8, weights, seq_lens, block_table):
    batch = q_index_fp8.shape[0]
    pages = k_index_cache_fp8.shape[0]
    cache = k_index_cache_fp8.reshape(pages, PAGE * (DIM + 4))
    keys = cache[:, : PAGE * DIM].view(torch.float8_e4m3fn).reshape(pages, PAGE, DIM)
    scales = cache[:, PAGE * DIM :].contiguous().view(torch.float32)  # (P, 64)
    topk_indices = torch.full((batch, TOPK), -1, dtype=torch.int32, device=q_index_fp8.device)

    for b, length in enumerate(seq_lens.tolist()):
        if length <= 0:
            continue
        table = block_table[b, : (length + PAGE - 1) // PAGE].long()
        key = (keys[table].float() * scales[table][:, :, None]).reshape(-1, DIM)[:length]  # (length, 128)
        products = torch.relu(q_index_fp8[b].float() @ key.T)  # (64, length)
        scores = (products * weights[b][:, None]).sum(dim=0)
        _, best = torch.topk(scores, min(TOPK, length))
        topk_indices[b, : best.numel()] = (table[best // PAGE] * PAGE + best % PAGE).int()
    return topk_indices

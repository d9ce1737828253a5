"""Top-k indexer over a paged cache of fp8 keys, DeepSeek-V3.2 (definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64), in
Triton.

For each sequence b and each of its seq_lens[b] tokens j:

    score[j]        = sum over heads h of weights[b, h] * max(q[b, h] . key[j], 0)
    topk_indices[b] = the 2048 tokens of the largest scores, as page * 64 + offset; -1 behind the last one of a sequence that
                      has fewer

q_index_fp8 (B, 64, 128) float8_e4m3fn; k_index_cache_fp8 (P, 64, 1, 132) int8: a page is 64 keys of 128 float8_e4m3fn, then
64 scales, float32; weights (B, 64) float32; seq_lens (B) int32; block_table (B, max_num_pages) int32: page p of a sequence.
Destination-passing: the last argument, topk_indices (B, 2048) int32, is written.

One program has the scores of one page of a sequence: a product of bfloat16, which holds every fp8 number exactly, summed in
float32. torch.topk chooses. Where to begin: topk sorts what need not be sorted, and looks at pages behind the end of
short sequences; a selection of your own (radix, by digits of the scores) reads the scores a few times and no more.
"""

import torch
import triton
import triton.language as tl

HEADS = 64
DIM = 128
PAGE = 64
TOPK = 2048


@triton.jit
def score_kernel(q, keys, scales, weights, seq_lens, block_table, pages, key_stride, scale_stride, scores,
                 HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr):
    page = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    length = tl.load(seq_lens + b)
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIM)
    tokens = tl.arange(0, PAGE)
    score = tl.full((PAGE,), float("-inf"), dtype=tl.float32)  # of entries past the end
    if page * PAGE < length:
        at = tl.load(block_table + b * pages + page).to(tl.int64)
        query = tl.load(q + (b * HEADS + heads[:, None]) * DIM + dims[None, :]).to(tl.bfloat16)  # (HEADS, DIM)
        key = tl.load(keys + at * key_stride + tokens[:, None] * DIM + dims[None, :]).to(tl.bfloat16)  # (PAGE, DIM)
        scale = tl.load(scales + at * scale_stride + tokens)  # (PAGE)
        products = tl.dot(query, tl.trans(key)) * scale[None, :]  # (HEADS, PAGE)
        weight = tl.load(weights + b * HEADS + heads)
        total = tl.sum(tl.maximum(products, 0.0) * weight[:, None], axis=0)
        score = tl.where(page * PAGE + tokens < length, total, float("-inf"))
    tl.store(scores + (b * pages + page) * PAGE + tokens, score)


def kernel(q_index_fp8, k_index_cache_fp8, weights, seq_lens, block_table, topk_indices):
    batch, pages = block_table.shape
    if batch == 0:
        return
    for name, t in (("q_index_fp8", q_index_fp8), ("k_index_cache_fp8", k_index_cache_fp8), ("weights", weights),
                    ("block_table", block_table), ("topk_indices", topk_indices)):
        if not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    cache = k_index_cache_fp8.view(-1, PAGE * (DIM + 4))
    keys = cache[:, : PAGE * DIM].view(torch.float8_e4m3fn)
    scales = cache[:, PAGE * DIM :].view(torch.float32)
    scores = torch.empty(batch, pages * PAGE, dtype=torch.float32, device=weights.device)
    score_kernel[(pages, batch)](
        q_index_fp8, keys, scales, weights, seq_lens, block_table, pages, keys.stride(0), scales.stride(0), scores,
        HEADS=HEADS, DIM=DIM, PAGE=PAGE, num_warps=4)

    count = min(TOPK, scores.shape[1])
    best, token = torch.topk(scores, count, dim=1)
    index = torch.gather(block_table, 1, token // PAGE) * PAGE + token % PAGE
    topk_indices.fill_(-1)
    topk_indices[:, :count] = torch.where(best > float("-inf"), index, -1)

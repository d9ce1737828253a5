[[- $state := or (and (has "state") "state") "initial_state" -]]
[[- $unit := or (named "mtp") (named "l2norm") -]]
"""[[about ""]]

One program keeps BLOCK_V value channels of one head's state from the first token to the last. Where to begin: the time is
that of reading and writing the states; BLOCK_V and num_warps by batch size.
"""

import math

import triton
import triton.language as tl

HEADS_QK = [[axis "num_q_heads"]]
HEADS_V = [[axis "num_v_heads"]]
DIM = [[axis "head_size"]]
BLOCK_V = 16


@triton.jit
def gdn_kernel([[upto "A_log"]],
               [[from "A_log"]],
               tokens, [[if optional $state]]HAS_STATE: tl.constexpr, [[end]]HEADS_QK: tl.constexpr, HEADS_V: tl.constexpr,
               DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    hv = tl.program_id(1) % HEADS_V
    head_qk = hv // (HEADS_V // HEADS_QK)
    n = (tl.program_id(1) // HEADS_V).to(tl.int64)  # sequence
    cols = tl.arange(0, DIM)  # key channels
    rows = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)  # value channels
[[- if has "initial_state_indices"]]
    slot = tl.load(initial_state_indices + n).to(tl.int64)
    if slot < 0:
        for t in range(tokens):
            tl.store(output + ((n * tokens + t) * HEADS_V + hv) * DIM + rows, tl.zeros((BLOCK_V,), dtype=tl.bfloat16))
        return
[[- else]]
    slot = n
[[- end]]

    tile = [[if named "v_last"]]cols[None, :] * DIM + rows[:, None][[else]]rows[:, None] * DIM + cols[None, :][[end]]  # (BLOCK_V, DIM), of the state of a head
[[- if optional $state]]
    if HAS_STATE:
        s = tl.load(state + (slot * HEADS_V + hv) * DIM * DIM + tile).to(tl.float32)
    else:
        s = tl.zeros((BLOCK_V, DIM), dtype=tl.float32)
[[- else]]
    s = tl.load([[$state]] + (slot * HEADS_V + hv) * DIM * DIM + tile).to(tl.float32)
[[- end]]
    rate = -tl.exp(tl.load(A_log + hv))
    bias = tl.load(dt_bias + hv)
    for t in range(tokens):
        token = n * tokens + t
        head = token * HEADS_V + hv
        key = tl.load(k + (token * HEADS_QK + head_qk) * DIM + cols).to(tl.float32)
        query = tl.load(q + (token * HEADS_QK + head_qk) * DIM + cols).to(tl.float32)
[[- if $unit]]
        key = key * tl.rsqrt(tl.sum(key * key, axis=0) + 1e-6)
        query = query * tl.rsqrt(tl.sum(query * query, axis=0) + 1e-6)
[[- end]]
        value = tl.load(v + head * DIM + rows).to(tl.float32)
        x = tl.load(a + head).to(tl.float32) + bias
        softplus = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))  # log(1 + e^x) without overflow
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b + head).to(tl.float32)))

        s = tl.exp(rate * softplus) * s
        delta = beta * (value - tl.sum(s * key[None, :], axis=1))
        s += delta[:, None] * key[None, :]
        tl.store(output + head * DIM + rows, (scale * tl.sum(s * query[None, :], axis=1)).to(tl.bfloat16))
[[- if has "intermediate_states"]]
        tl.store(intermediate_states + head * DIM * DIM + tile, s.to(intermediate_states.dtype.element_ty))
[[- else if has "ssm_state_indices"]]
        to = tl.load(ssm_state_indices + token).to(tl.int64)
        if to >= 0:
            tl.store([[$state]] + (to * HEADS_V + hv) * DIM * DIM + tile, s.to([[$state]].dtype.element_ty))
[[- end]]
[[- if has "new_state"]]
    tl.store(new_state + (slot * HEADS_V + hv) * DIM * DIM + tile, s.to(new_state.dtype.element_ty))
[[- else if has "output_state_indices"]]
    to = tl.load(output_state_indices + n).to(tl.int64)
    if to >= 0:
        tl.store([[$state]] + (to * HEADS_V + hv) * DIM * DIM + tile, s.to([[$state]].dtype.element_ty))
[[- else if and (has "final_state") (not (has "ssm_state_indices"))]]
    tl.store([[$state]] + (slot * HEADS_V + hv) * DIM * DIM + tile, s.to([[$state]].dtype.element_ty))
[[- end]]


def kernel([[upto "A_log"]],
           [[from "A_log"]]):
    batch, tokens = q.shape[:2]
    if batch == 0:
        return
    if not scale:
        scale = 1.0 / math.sqrt(DIM)
    for name, t in (("q", q), ("k", k), ("v", v), ("[[$state]]", [[$state]]), ("a", a), ("b", b), ("output", output)
[[- if has "new_state"]],
                    ("new_state", new_state)[[end]]
[[- if has "intermediate_states"]],
                    ("intermediate_states", intermediate_states)[[end]]):
        if [[if optional $state]]t is not None and [[end]]not t.is_contiguous():
            raise ValueError(f"{name}: not contiguous")
    gdn_kernel[(DIM // BLOCK_V, batch * HEADS_V)](
        [[upto "A_log"]],
        [[from "A_log"]],
        tokens, [[if optional $state]]HAS_STATE=state is not None, [[end]]HEADS_QK=HEADS_QK, HEADS_V=HEADS_V, DIM=DIM, BLOCK_V=BLOCK_V,
        num_warps=4)

"""Lightning indexer: which keys each query attends to, by scores that are never stored.

    score(t, s) = scale_s * sum over h of weight(t, h) * max(0, q(t, h) . k(s)),    s no later than t

One program takes a few queries and streams all their keys. A score that beats the query's bound is appended to a list
of candidates; a list that could overflow is cut down to its TOP best, whose least becomes the new bound. The bound
rises quickly, so few scores are ever written: about TOP for each doubling of the context. The selection is exact; of
scores equal to the bound it takes any. Queries are the last of the keys, T of S.

q and k come in bf16, or in fp8 with the scale of each query and head folded into its weight and the scale of each key
in *scale_S*.

Legend: T queries, S keys, H heads, D width, Q queries of one program, B keys of one step, R = Q * H rows of queries, N
candidates of one query.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.device import multiprocessors

QUERY_ROWS = 128
"""Queries times heads of one program: the columns of its products."""
KEYS = 128
CANDIDATES = 2
"""Room for candidates, in times the number of keys chosen."""
FEW_STEPS = tl.constexpr(4)
"""Steps for which a list must have room, else it is cut down."""
PROGRAMS_PER_MULTIPROCESSOR = 2
LAUNCH = {"num_warps": 4}
STAGES = {1: 3, 2: 2, 4: 1}
"""Steps of keys in shared memory by bytes of a channel: as many as two programs leave each other."""
NONE = -1


@triton.jit
def ordered(score):
    """Integers in the order of the floats."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def ordered_bound(rank_N, TOP: tl.constexpr):
    """An integer that at least TOP of *rank_N* reach and fewer than TOP exceed, by halving."""
    low, high = tl.min(rank_N, 0), tl.max(rank_N, 0)
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        reach = tl.sum((rank_N >= middle).to(tl.int32), 0)
        high = tl.where(reach > TOP, high, tl.where(reach == TOP, middle, middle - 1))
        low = tl.where(reach >= TOP, middle, low)
    return low


@triton.jit
def _cut(score_ptr, key_ptr, count, TOP: tl.constexpr, N: tl.constexpr):
    """Leave the TOP best of a list of *count* candidates, more than TOP; the least of their scores."""
    n_N = tl.arange(0, N)
    tl.debug_barrier()
    score_N = tl.load(score_ptr + n_N, mask=n_N < count, other=-float("inf"))
    rank_N = ordered(score_N)
    bound = ordered_bound(rank_N, TOP)
    above_N, equal_N = rank_N > bound, rank_N == bound
    before_N = tl.cumsum(above_N.to(tl.int32) + (equal_N.to(tl.int32) << 16), 0)
    above = tl.sum(above_N.to(tl.int32), 0)
    at_N = tl.where(above_N, before_N & 0xFFFF, above + (before_N >> 16)) - 1
    taken_N = (above_N | equal_N) & (at_N < TOP)
    key_N = tl.load(key_ptr + n_N, mask=taken_N, other=0)
    tl.debug_barrier()
    tl.store(score_ptr + at_N, score_N, mask=taken_N)
    tl.store(key_ptr + at_N, key_N, mask=taken_N)
    return tl.min(tl.where(taken_N, score_N, float("inf")), 0)


@triton.jit
def _choose(q_desc, k_desc, weight_ptr, scale_ptr, score_ptr, key_ptr, out_ptr, T, S, H: tl.constexpr, Q: tl.constexpr,
            B: tl.constexpr, TOP: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Keys of Q queries after Q queries, the latest first; lists of candidates belong to the program."""
    q_Q, b_B = tl.arange(0, Q), tl.arange(0, B)
    list_Q = (tl.program_id(0) * Q + q_Q).to(tl.int64) * N
    blocks = tl.cdiv(T, Q)
    for turn in range(tl.program_id(0), blocks, tl.num_programs(0)):
        first = (blocks - 1 - turn) * Q
        q_RD = q_desc.load([first * H, 0])
        r_R = first * H + tl.arange(0, Q * H)
        weight_R = tl.load(weight_ptr + r_R, mask=r_R < T * H, other=0.0)
        last_Q = S - T + first + q_Q
        past = tl.minimum(S, S - T + first + Q)
        bound_Q = tl.full([Q], -float("inf"), dtype=tl.float32)
        count_Q = tl.zeros([Q], dtype=tl.int32)
        at = 0
        while at < past:
            steps = tl.minimum((N - tl.max(count_Q, 0)) // B, tl.cdiv(past - at, B))
            for step in range(steps):
                key_B = at + step * B + b_B
                dot_BR = tl.maximum(tl.dot(k_desc.load([at + step * B, 0]), tl.trans(q_RD)), 0.0) * weight_R[None, :]
                score_BQ = tl.sum(tl.reshape(dot_BR, [B, Q, H]), 2)
                if SCALED:
                    score_BQ *= tl.load(scale_ptr + key_B, mask=key_B < S, other=0.0)[:, None]
                found_BQ = (score_BQ > bound_Q[None, :]) & (key_B[:, None] <= last_Q[None, :])
                one_BQ = found_BQ.to(tl.int32)
                at_BQ = list_Q[None, :] + count_Q[None, :] + tl.cumsum(one_BQ, 0) - 1
                tl.store(score_ptr + at_BQ, score_BQ, mask=found_BQ)
                tl.store(key_ptr + at_BQ, tl.broadcast_to(key_B[:, None], [B, Q]), mask=found_BQ)
                count_Q += tl.sum(one_BQ, 0)
            at += steps * B
            full = (N - tl.max(count_Q, 0) < FEW_STEPS * B) | (at >= past)
            for j in range(tl.where(full, Q, 0)):
                mine_Q = q_Q == j
                count = tl.sum(tl.where(mine_Q, count_Q, 0), 0)
                if count > TOP:
                    mine = (tl.program_id(0) * Q + j).to(tl.int64) * N
                    least = _cut(score_ptr + mine, key_ptr + mine, count, TOP, N)
                    bound_Q = tl.where(mine_Q, least, bound_Q)
                    count_Q = tl.where(mine_Q, TOP, count_Q)
        tl.debug_barrier()
        top_T = tl.arange(0, TOP)
        for j in range(tl.minimum(Q, T - first)):
            count = tl.sum(tl.where(q_Q == j, count_Q, 0), 0)
            mine = (tl.program_id(0) * Q + j).to(tl.int64) * N
            chosen_T = tl.load(key_ptr + mine + top_T, mask=top_T < count, other=-1)
            tl.store(out_ptr + (first + j).to(tl.int64) * TOP + top_T, chosen_T)
        tl.debug_barrier()


def choose_keys(
    q_THD: torch.Tensor,
    k_SD: torch.Tensor,
    weight_TH: torch.Tensor,
    top: int,
    scale_S: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, top] int32: the keys of the *top* best scores of each query, in no order; -1 where it sees fewer.

    *weight_TH* and *scale_S* are fp32. Beside the result it allocates a list of twice *top* candidates for each query
    in flight, whatever the lengths.
    """
    (T, H, D), S = q_THD.shape, len(k_SD)
    wrong = [f"{name} is {x}" for name, x in (("heads", H), ("width", D), ("top", top)) if x & (x - 1) or x < 1]
    if top < FEW_STEPS.value:
        wrong.append(f"top is {top}, less than {FEW_STEPS.value}")
    if S < T or H > QUERY_ROWS:
        wrong.append(f"{T} queries of {H} heads with {S} keys")
    if wrong:
        rules = f"powers of two, heads at most {QUERY_ROWS}, no more queries than keys"
        raise ValueError(f"{'; '.join(wrong)}: {rules}")
    Q, B = QUERY_ROWS // H, min(KEYS, top // FEW_STEPS.value)
    out_TK = torch.empty(T, top, dtype=torch.int32, device=q_THD.device)
    programs = min(triton.cdiv(T, Q), PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(q_THD))
    score = torch.empty(programs * Q, CANDIDATES * top, dtype=torch.float32, device=q_THD.device)
    key = torch.empty_like(score, dtype=torch.int32)
    q_desc = TensorDescriptor.from_tensor(q_THD.reshape(T * H, D), [Q * H, D])
    k_desc = TensorDescriptor.from_tensor(k_SD, [B, D])
    flags = {"H": H, "Q": Q, "B": B, "TOP": top, "N": CANDIDATES * top, "SCALED": scale_S is not None}
    scale = weight_TH if scale_S is None else scale_S
    launch = {**LAUNCH, "num_stages": STAGES[q_THD.element_size()]}
    _choose[(programs,)](q_desc, k_desc, weight_TH, scale, score, key, out_TK, T, S, **flags, **launch)
    return out_TK


def rounded_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x over its scale in e4m3, the scale): the largest of each row, along the last dimension, becomes 448."""
    scale = x.abs().amax(-1).float().clamp(min=1e-12) / 448.0
    return (x.float() / scale[..., None]).to(torch.float8_e4m3fn), scale

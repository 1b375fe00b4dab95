"""Lightning indexer: which keys each query attends to, by scores that are never stored.

    score(t, s) = scale_s * sum over h of weight(t, h) * max(0, q(t, h) . k(s)),    s no later than t

One program takes a few queries and streams all their keys. A score that beats the query's bound is written to a list of
candidates, and a list that could overflow is cut down to its TOP best, whose least becomes the new bound. The bound
rises quickly, so few scores are ever written: about TOP for each doubling of the context. Each place of a step has
places of its own in the list, one for each step to come, so that steps find room without asking each other; after a cut
all places hold as many. The selection is exact; of scores equal to the bound it takes any. Queries are the last of the
keys, T of S.

q and k come in bf16, or in fp8 with the scale of each query and head folded into its weight and the scale of each key
in *scale_S*.

Legend: T queries, S keys, H heads, D width, Q queries of one program, B keys of one step, R = Q * H rows of queries, N
entries of one query's list, B of them after B.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.device import multiprocessors

QUERIES = 4
"""Queries of one program: as many as the threads that hold one row of a product."""
QUERY_ROWS = 128
"""Queries times heads of one program, at most: the columns of its products."""
PRODUCTS = 2**14
"""Elements of a product: 128 registers of each thread."""
KEYS = 128
WARPS = tl.constexpr(4)
ROWS_AT_ONCE = tl.constexpr(64)
"""Rows that the warps of a program multiply at once, each of them two times as many as threads hold columns."""
CANDIDATES = 2
"""Entries of a list, in times the number of keys chosen: longer lists are cut less often, which takes longer."""
RANKS = tl.constexpr(2**14)
"""Entries that are searched at once: 128 registers of each thread."""
FEW_STEPS = tl.constexpr(4)
"""Steps for which a list must have room, else it is cut down."""
PROGRAMS_PER_MULTIPROCESSOR = 2
STAGES = {1: 4, 2: 2, 4: 1}
"""Steps of keys in shared memory by bytes of a channel: few enough for two programs."""
FEWEST = 2 * WARPS.value * FEW_STEPS.value
"""Fewest keys that can be chosen."""
NONE = tl.constexpr(-0x0080_0000_0000_0000)
"""An empty entry: minus infinity over key 0."""
EMPTY = tl.constexpr(-0x7F80_0001)
"""Place of minus infinity in the order of the floats."""


@triton.jit
def ordered(score):
    """Integers in the order of the floats."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def ordered_bounds(rank_GN, TOP: tl.constexpr):
    """For each row an integer that at least TOP reach and fewer than TOP exceed, by halving; EMPTY if few are not."""
    there_GN = rank_GN > EMPTY
    enough_G = tl.sum(there_GN.to(tl.int32), 1) >= TOP
    high_G = tl.where(enough_G, tl.max(rank_GN, 1), EMPTY)
    low_G = tl.where(enough_G, tl.min(tl.where(there_GN, rank_GN, 0x7FFFFFFF), 1), EMPTY)
    while tl.max((low_G < high_G).to(tl.int32), 0) > 0:
        middle_G = (low_G | high_G) - ((low_G ^ high_G) >> 1)
        reach_G = tl.sum((rank_GN >= middle_G[:, None]).to(tl.int32), 1)
        high_G = tl.where(reach_G > TOP, high_G, tl.where(reach_G == TOP, middle_G, middle_G - 1))
        low_G = tl.where(reach_G >= TOP, middle_G, low_G)
    return low_G


@triton.jit
def entry(score, key):
    """A candidate in 64 bits: the score over its key."""
    return (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | key.to(tl.int64)


@triton.jit
def ranks(list_ptr, at):
    """Scores of entries as integers in their order."""
    return ordered((tl.load(list_ptr + at) >> 32).to(tl.int32).to(tl.float32, bitcast=True))


@triton.jit
def cut(list_ptr, bound, TOP: tl.constexpr, N: tl.constexpr):
    """Leave in a list's first entries the TOP best, of which *bound* is the least; the others are empty."""
    n_N = tl.arange(0, N)
    rank_N = ranks(list_ptr, n_N)
    above_N, equal_N = rank_N > bound, rank_N == bound
    before_N = tl.cumsum(above_N.to(tl.int32) + (equal_N.to(tl.int32) << 16), 0)
    above = tl.sum(above_N.to(tl.int32), 0)
    at_N = tl.where(above_N, before_N & 0xFFFF, above + (before_N >> 16)) - 1
    taken_N = (above_N | equal_N) & (at_N < TOP)
    best_N = tl.load(list_ptr + n_N, mask=taken_N, other=0)
    tl.debug_barrier()
    tl.store(list_ptr + at_N, best_N, mask=taken_N)
    tl.store(list_ptr + n_N, tl.full([N], NONE, dtype=tl.int64), mask=n_N >= TOP)


@triton.jit
def _cut_all(list_ptr, bound_E, TOP: tl.constexpr, N: tl.constexpr, Q: tl.constexpr):
    """Cut all lists; the bounds that this leaves. A bound is searched for in as many lists as registers hold."""
    G: tl.constexpr = Q if Q * N <= RANKS else (RANKS // N if N < RANKS else 1)
    e_E, g_G = tl.arange(0, bound_E.shape[0]), tl.arange(0, G)
    tl.debug_barrier()
    for j in range(0, Q, G):
        least_G = ordered_bounds(ranks(list_ptr, (j + g_G)[:, None] * N + tl.arange(0, N)[None, :]), TOP)
        for g in range(G):
            least = tl.sum(tl.where(g_G == g, least_G, 0), 0)
            cut(list_ptr + (j + g) * N, least, TOP, N)
            score = ordered(least.to(tl.float32, bitcast=True)).to(tl.float32, bitcast=True)
            bound_E = tl.where(e_E % Q == j + g, score, bound_E)
    tl.debug_barrier()
    return bound_E


@triton.jit
def scores(q_RD, k_BD, weight_R, H: tl.constexpr, Q: tl.constexpr):
    """[B * Q] scores of a step's keys for each query, but for the scale of the keys, in the order of `keys_of_step`.

    With queries between pairs of heads, the matrix unit leaves all heads of a query and key in one thread; with rows in
    the order of its warps, scores lie in threads as elements of a list do. Nothing is exchanged between threads.
    """
    B: tl.constexpr = k_BD.shape[0]
    EACH: tl.constexpr = (ROWS_AT_ONCE if B > ROWS_AT_ONCE else B) // WARPS // 2
    dot_BR = tl.maximum(tl.dot(k_BD, tl.trans(q_RD)), 0.0) * weight_R[None, :]
    parts = tl.reshape(dot_BR, [B // (2 * WARPS * EACH), WARPS, 2, EACH, H // 2, Q, 2])
    return tl.sum(tl.reshape(tl.permute(parts, (0, 2, 1, 3, 5, 4, 6)), [B * Q, H]), 1)


@triton.jit
def keys_of_step(B: tl.constexpr, Q: tl.constexpr):
    """Key of each of a step's scores, counted from the step's first."""
    EACH: tl.constexpr = (ROWS_AT_ONCE if B > ROWS_AT_ONCE else B) // WARPS // 2
    place_E = tl.arange(0, B * Q) // Q
    warp_E, half_E = place_E // EACH % WARPS, place_E // (WARPS * EACH)
    return (half_E // 2 * WARPS + warp_E) * 2 * EACH + half_E % 2 * EACH + place_E % EACH


@triton.jit
def rows_of_queries(q_ptr, weight_ptr, first, T, H: tl.constexpr, Q: tl.constexpr, D: tl.constexpr):
    """(q_RD, weight_R) of Q queries, these between pairs of heads: (head / 2, query, head % 2)."""
    r_R = tl.arange(0, Q * H)
    token_R = first + r_R // 2 % Q
    row_R = token_R.to(tl.int64) * H + r_R // (2 * Q) * 2 + r_R % 2
    at_RD = q_ptr + row_R[:, None] * D + tl.arange(0, D)[None, :]
    q_RD = tl.load(at_RD, mask=(token_R < T)[:, None], other=0.0)
    return q_RD, tl.load(weight_ptr + row_R, mask=token_R < T, other=0.0)


@triton.jit
def _choose(q_ptr, k_desc, weight_ptr, scale_ptr, list_ptr, out_ptr, T, S, H: tl.constexpr, Q: tl.constexpr,
            D: tl.constexpr, B: tl.constexpr, TOP: tl.constexpr, N: tl.constexpr, SCALED: tl.constexpr):  # fmt: skip
    """Keys of Q queries after Q queries, the latest first; lists of candidates belong to the program."""
    e_E, key_E = tl.arange(0, B * Q), keys_of_step(B, Q)
    empty_E = e_E % Q * N + e_E // Q
    list_ptr += tl.program_id(0).to(tl.int64) * Q * N
    blocks = tl.cdiv(T, Q)
    for turn in range(tl.program_id(0), blocks, tl.num_programs(0)):
        first = (blocks - 1 - turn) * Q
        tl.store(list_ptr + tl.arange(0, Q * N), tl.full([Q * N], NONE, dtype=tl.int64))
        tl.debug_barrier()
        q_RD, weight_R = rows_of_queries(q_ptr, weight_ptr, first, T, H, Q, D)
        last_E = S - T + first + e_E % Q
        past = tl.minimum(S, S - T + first + Q)
        bound_E = tl.full([B * Q], -float("inf"), dtype=tl.float32)
        next_E = empty_E
        scale_E = tl.load(scale_ptr + key_E, mask=key_E < S, other=0.0) if SCALED else bound_E
        at = 0
        while at < past:
            room = N // B - tl.max(next_E - empty_E, 0) // B
            steps = tl.minimum(room, tl.cdiv(past - at, B))
            for step in range(steps):
                score_E = scores(q_RD, k_desc.load([at + step * B, 0]), weight_R, H, Q)
                seen_E = at + step * B + key_E
                if SCALED:
                    score_E *= scale_E
                    scale_E = tl.load(scale_ptr + seen_E + B, mask=seen_E + B < S, other=0.0)
                found_E = (score_E > bound_E) & (seen_E <= last_E)
                tl.store(list_ptr + next_E, entry(score_E, seen_E), mask=found_E)
                next_E += tl.where(found_E, B, 0)
            at += steps * B
            if (N // B - tl.max(next_E - empty_E, 0) // B < FEW_STEPS) | (at >= past):
                bound_E = _cut_all(list_ptr, bound_E, TOP, N, Q)
                next_E = empty_E + TOP
        top_K = tl.arange(0, TOP)
        for j in range(tl.minimum(Q, T - first)):
            chosen_K = tl.load(list_ptr + j * N + top_K)
            key_K = tl.where(chosen_K == NONE, -1, (chosen_K & 0x7FFFFFFF).to(tl.int32))
            tl.store(out_ptr + (first + j).to(tl.int64) * TOP + top_K, key_K)
        tl.debug_barrier()


def tiling(q_THD: torch.Tensor, k_SD: torch.Tensor, top: int) -> tuple[int, int]:
    """(queries of one program, keys of one step), or a ValueError that says which sizes cannot be tiled."""
    (T, H, D), S = q_THD.shape, len(k_SD)
    wrong = [f"{name} is {x}" for name, x in (("heads", H), ("width", D), ("top", top)) if x & (x - 1) or x < 2]
    if top < FEWEST:
        wrong.append(f"top is {top}, less than {FEWEST}")
    if S < T or H > QUERY_ROWS:
        wrong.append(f"{T} queries of {H} heads with {S} keys")
    if wrong:
        rules = f"powers of two, heads at most {QUERY_ROWS}, no more queries than keys"
        raise ValueError(f"{'; '.join(wrong)}: {rules}")
    queries = min(QUERIES, QUERY_ROWS // H)
    return queries, min(KEYS, PRODUCTS // (queries * H), top // FEW_STEPS.value)


def choose_keys(
    q_THD: torch.Tensor,
    k_SD: torch.Tensor,
    weight_TH: torch.Tensor,
    top: int,
    scale_S: torch.Tensor | None = None,
) -> torch.Tensor:
    """[T, top] int32: the keys of the *top* best scores of each query, in no order; -1 where it sees fewer.

    *weight_TH* and *scale_S* are fp32. Beside the result it allocates lists of twice *top* candidates for each query in
    flight, whatever the lengths.
    """
    (Q, B), (T, H, D), S = tiling(q_THD, k_SD, top), q_THD.shape, len(k_SD)
    out_TK = torch.empty(T, top, dtype=torch.int32, device=q_THD.device)
    programs = min(triton.cdiv(T, Q), PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(q_THD))
    N = CANDIDATES * top
    lists = torch.empty(programs * Q, N, dtype=torch.int64, device=q_THD.device)
    k_desc = TensorDescriptor.from_tensor(k_SD, [B, D])
    flags = {"H": H, "Q": Q, "D": D, "B": B, "TOP": top, "N": N, "SCALED": scale_S is not None}
    scale = weight_TH if scale_S is None else scale_S
    launch = {"num_warps": WARPS.value, "num_stages": STAGES[q_THD.element_size()]}
    _choose[(programs,)](q_THD.contiguous(), k_desc, weight_TH, scale, lists, out_TK, T, S, **flags, **launch)
    return out_TK


def rounded_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x over its scale in e4m3, the scale): the largest of each row, along the last dimension, becomes 448."""
    scale = x.abs().amax(-1).float().clamp(min=1e-12) / 448.0
    return (x.float() / scale[..., None]).to(torch.float8_e4m3fn), scale

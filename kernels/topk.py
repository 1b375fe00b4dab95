"""The best of each row of given scores, in one pass over them.

A program streams a row, a block at a time. Scores that beat the row's bound go to the end of a list; of a block with
more than TOP such scores only its TOP best do, whose least is the new bound. A list that a block could overflow is cut
down to its TOP best, whose least is the new bound, too. So the list grows by a factor before each cut, and a row is cut
about log(S / TOP) times and read once. The selection is exact; of scores equal to the bound it takes any.

This is what stacks run that store the scores of their indexer, and so does `kernels.indexer_stored`.

Blocks lie in threads by columns: entries find their places by sums over a thread's own column, and one scan over the
columns. So the places of a row come in no order.

Legend: T rows, S scores of a row, B of one block, K chosen, N entries of a program's list: N ranks, then N places; C
columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.device import multiprocessors
from kernels.indexer import EMPTY, ordered

BLOCK = 4
"""Scores of a block, in times the number chosen."""
CANDIDATES = 4
"""Entries of a list, in times the number chosen."""
MOST = 2**13
"""Most scores that can be chosen: those of a block are counted in 16 bits."""
WARPS = 8
COLUMNS = 32 * WARPS
PROGRAMS_PER_MULTIPROCESSOR = 2
LAUNCH = {"num_warps": WARPS, "maxnreg": 128}
"""A thread holds 32 scores of a block, and as many of the next: some spill, and two programs share a multiprocessor."""


@triton.jit
def _tile(at, B: tl.constexpr, C: tl.constexpr):
    """[C, B / C] numbers from *at* on, one a thread of each row, as they are stored: no tile changes its layout."""
    return tl.max_contiguous(at + tl.arange(0, C)[:, None] + tl.arange(0, B // C)[None, :] * C, [1, 1])


@triton.jit
def _block(score_ptr, row, at, S, past, B: tl.constexpr, C: tl.constexpr):
    """Scores of one block of a row; minus infinity behind its last."""
    place_CG = _tile(at, B, C)
    here_CG = place_CG < tl.minimum(S, past + row + 1)
    return tl.load(score_ptr + tl.cast(row, tl.int64) * S + place_CG, mask=here_CG, other=-float("inf"))


@triton.jit
def _ranks(score_CG):
    """Integers in the order of the scores, of as many bits."""
    rank_CG = ordered(score_CG.to(tl.float32))
    return rank_CG if score_CG.dtype == tl.float32 else rank_CG >> 16


@triton.jit
def _count(is_CG):
    """How many of a tile are true."""
    return tl.sum(tl.sum(is_CG.to(tl.int32), 1), 0)


@triton.jit
def _least(rank_CG, low, TOP: tl.constexpr):
    """What at least TOP reach and fewer than TOP exceed, by halving; at least TOP reach *low*."""
    high = tl.max(tl.max(rank_CG, 1), 0)
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        reach = _count(rank_CG >= middle)
        high = tl.where(reach > TOP, high, tl.where(reach == TOP, middle, middle - 1))
        low = tl.where(reach >= TOP, middle, low)
    return low


@triton.jit
def _append(list_ptr, held, rank_CG, place_CG, least, equals, N: tl.constexpr):
    """Put entries above *least* behind the *held* of a list, and *equals* of those equal to it, as far as there are."""
    above_CG, equal_CG = rank_CG > least, rank_CG == least
    each_CG = above_CG.to(tl.int32) + (equal_CG.to(tl.int32) << 16)
    each_C = tl.sum(each_CG, 1)
    order_CG = tl.cumsum(each_CG, 1) + (tl.cumsum(each_C, 0) - each_C)[:, None]
    taken_CG = above_CG | (equal_CG & (order_CG >> 16 <= equals))
    at_CG = held + (order_CG & 0xFFFF) + tl.minimum(order_CG >> 16, equals) - 1
    tl.store(list_ptr + at_CG, rank_CG, mask=taken_CG)
    tl.store(list_ptr + N + at_CG, place_CG, mask=taken_CG)


@triton.jit
def _cut(list_ptr, held, bound, LOWEST: tl.constexpr, TOP: tl.constexpr, N: tl.constexpr, C: tl.constexpr):
    """Leave in a list's first entries the TOP best of the *held*, of which TOP reach *bound*; the least of them."""
    n_CG = _tile(0, N, C)
    tl.debug_barrier()
    rank_CG = tl.load(list_ptr + n_CG, mask=n_CG < held, other=LOWEST)
    least = _least(rank_CG, bound, TOP)
    equals, kept = TOP - _count(rank_CG > least), 0
    for at in range(0, held, TOP):
        k_CG = _tile(at, TOP, C)
        some_CG = tl.load(list_ptr + k_CG, mask=k_CG < held, other=LOWEST)
        place_CG = tl.load(list_ptr + N + k_CG, mask=k_CG < held, other=0)
        above, taken = _count(some_CG > least), tl.minimum(_count(some_CG == least), equals)
        tl.debug_barrier()
        _append(list_ptr, kept, some_CG, place_CG, least, equals, N)
        kept, equals = kept + above + taken, equals - taken
    return least


@triton.jit
def _best(score_ptr, list_ptr, out_ptr, T, S, past, LOWEST: tl.constexpr, TOP: tl.constexpr, N: tl.constexpr,
          B: tl.constexpr, C: tl.constexpr):  # fmt: skip
    """The best of each row; row *t* has past + t + 1 scores, S at most. Lists belong to the program."""
    list_ptr += tl.program_id(0) * 2 * N
    for row in range(tl.program_id(0), T, tl.num_programs(0)):
        end = tl.minimum(S, past + row + 1)
        bound, held = tl.cast(LOWEST, tl.int32), 0
        next_CG = _block(score_ptr, row, 0, S, past, B, C)
        for at in range(0, end, B):
            rank_CG = _ranks(next_CG)
            next_CG = _block(score_ptr, row, at + B, S, past, B, C)
            before, found, equals = bound, _count(rank_CG > bound), 0
            if found > TOP:
                bound = _least(rank_CG, bound, TOP)
                found, equals = TOP, TOP - _count(rank_CG > bound)
            least = bound
            if held + found > N:
                bound = tl.maximum(bound, _cut(list_ptr, held, before, LOWEST, TOP, N, C))
                held = TOP
                tl.debug_barrier()
            _append(list_ptr, held, rank_CG, _tile(at, B, C), least, equals, N)
            held += found
        if held > TOP:
            _cut(list_ptr, held, bound, LOWEST, TOP, N, C)
        tl.debug_barrier()
        top_K = tl.arange(0, TOP)
        place_K = tl.load(list_ptr + N + top_K, mask=top_K < held, other=-1)
        tl.store(out_ptr + tl.cast(row, tl.int64) * TOP + top_K, place_K)
        tl.debug_barrier()


def best(score_TS: torch.Tensor, top: int, past: int | None = None) -> torch.Tensor:
    """[T, top] int32: places of the *top* largest of each row, in no order; -1 where a row has fewer.

    With *past*, row t counts its first past + t + 1 scores, as a query does that sees no later key; else all. Scores
    are fp32, or bf16; those of minus infinity are never chosen. Beside the result it allocates a list for each program.
    """
    T, S = score_TS.shape
    if top & (top - 1) or not 2 <= top <= MOST:
        raise ValueError(f"top is {top}, not a power of two up to {MOST}")
    if score_TS.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"scores are {score_TS.dtype}, not float32 or bfloat16")
    out_TK = torch.empty(T, top, dtype=torch.int32, device=score_TS.device)
    N = CANDIDATES * top
    programs = min(T, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(score_TS))
    lists = torch.empty(programs, 2, N, dtype=torch.int32, device=score_TS.device)
    seen = S if past is None else past
    flags = {"LOWEST": EMPTY.value >> (0 if score_TS.dtype == torch.float32 else 16), "TOP": top, "N": N}
    flags |= {"B": BLOCK * top, "C": min(COLUMNS, top)}
    _best[(programs,)](score_TS.contiguous(), lists, out_TK, T, S, seen, **flags, **LAUNCH)
    return out_TK

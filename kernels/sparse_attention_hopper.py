"""Sparse attention of blocks of 64 heads on Hopper, in one kernel: no weights of keys go through memory.

One program takes one query and 64 heads. One group of warps gathers keys, two tiles of 64 at a time, each in halves
that it fills again as soon as they are free; two others score a tile each, and each sums half of the output's channels
over both tiles, whose powers they exchange. While one takes powers, the other's products run. The tiles of a query form
a chain: powers refer to the largest score of its first tile, and from a tile whose scores exceed that by more than a
power of two holds on, to that tile's largest.

The order of tiles and halves is that of the public FlashMLA's sparse prefill, which rescales its sums at each tile.

Legend: T queries, H heads, X those of a program, J chosen keys, B keys of one tile, C channels of a key, P those of a
half without rope, R those of the rope.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from kernels.hopper_language import barrier, copy_to_shared, seen_as
from kernels.sparse_tiles import LOG2_E

HEADS = 64
X = gl.constexpr(HEADS)
B = gl.constexpr(64)
P, R = gl.constexpr(256), gl.constexpr(64)
THREADS = gl.constexpr(128)
LOWEST = gl.constexpr(-1e30)
EXCESS = gl.constexpr(64)
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
ROW = gl.constexpr(gl.SliceLayout(1, SCORES))
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.jit
def _copy_query(q, q_ready, q_ptr, h_0, H, C: gl.constexpr):
    """Copy the heads' rows; heads past the last are zeros."""
    q_L, q_R, q_rope = q
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    h_X = gl.arange(0, X, layout=gl.SliceLayout(1, L))
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    r_R = gl.arange(0, R, layout=gl.SliceLayout(0, L))
    at_X1, here_X1 = q_ptr + (h_X * C)[:, None], (h_0 + h_X < H)[:, None]
    copy_to_shared(q_L, at_X1 + p_P[None, :], mask=here_X1)
    copy_to_shared(q_R, at_X1 + P + p_P[None, :], mask=here_X1)
    copy_to_shared(q_rope, at_X1 + 2 * P + r_R[None, :], mask=here_X1)
    async_copy.mbarrier_arrive(q_ready, increment_count=False)


@gluon.jit
def _gather(q, keys, bars, pointers, h_0, H, J: gl.constexpr, C: gl.constexpr):
    """Copy the query, then halves of tiles: left of the even, right of the odd, right of the even, left of the odd."""
    kv_L, kv_R, kv_rope = keys
    q_ready, ready, free, _ = bars
    q_ptr, kv_ptr, index_ptr = pointers
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    _copy_query(q, q_ready, q_ptr, h_0, H, C)
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    r_R = gl.arange(0, R, layout=gl.SliceLayout(0, L))
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    for n in range(J // (2 * B)):
        even_B = gl.load(index_ptr + 2 * n * B + b_B)
        odd_B = gl.load(index_ptr + (2 * n + 1) * B + b_B)
        even_B1 = kv_ptr + (gl.maximum(even_B, 0).to(gl.int64) * C)[:, None]
        odd_B1 = kv_ptr + (gl.maximum(odd_B, 0).to(gl.int64) * C)[:, None]
        phase = (n & 1) ^ 1
        mbarrier.wait(free.index(0), phase)
        copy_to_shared(kv_L.index(0), even_B1 + p_P[None, :], mask=(even_B >= 0)[:, None])
        async_copy.mbarrier_arrive(ready.index(0), increment_count=False)
        mbarrier.wait(free.index(3), phase)
        copy_to_shared(kv_R.index(1), odd_B1 + P + p_P[None, :], mask=(odd_B >= 0)[:, None])
        copy_to_shared(kv_rope.index(1), odd_B1 + 2 * P + r_R[None, :], mask=(odd_B >= 0)[:, None])
        async_copy.mbarrier_arrive(ready.index(3), increment_count=False)
        mbarrier.wait(free.index(1), phase)
        copy_to_shared(kv_R.index(0), even_B1 + P + p_P[None, :], mask=(even_B >= 0)[:, None])
        copy_to_shared(kv_rope.index(0), even_B1 + 2 * P + r_R[None, :], mask=(even_B >= 0)[:, None])
        async_copy.mbarrier_arrive(ready.index(1), increment_count=False)
        mbarrier.wait(free.index(2), phase)
        copy_to_shared(kv_L.index(1), odd_B1 + p_P[None, :], mask=(odd_B >= 0)[:, None])
        async_copy.mbarrier_arrive(ready.index(2), increment_count=False)


@gluon.jit
def _score(q, kv, score_XB):
    """Products of half of the channels, 64 a step: a loop, whose few descriptors stay in registers."""
    tiled: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    q_steps, kv_steps = seen_as(q, [P // R, X, R], tiled), seen_as(kv, [P // R, B, R], tiled)
    for c in range(P // R):
        score_XB = warpgroup_mma(q_steps.index(c), kv_steps.index(c).permute([1, 0]), score_XB, is_async=True)
    return score_XB


@gluon.jit
def _by_row(sum_XP, factor_X):
    return sum_XP * gl.convert_layout(factor_X, gl.SliceLayout(1, SUMS), assert_trivial=True)[:, None]


@gluon.jit
def _hand_over(powers, powers_XB, references, reference_X, done):
    """Give a tile's powers and what they refer to to the other group."""
    powers.store(powers_XB)
    references.store(reference_X)
    fence_async_shared()
    barrier()
    mbarrier.arrive(done, count=1)


@gluon.jit
def _nothing():
    """(no sums, no scores, references that any score exceeds, no sum of powers, keys of a tile by number)."""
    reference_X = gl.full([X], LOWEST, gl.float32, ROW)
    none_XP, none_XB = gl.zeros([X, P], gl.float32, SUMS), gl.zeros([X, B], gl.float32, SCORES)
    b_B = gl.arange(0, B, layout=gl.SliceLayout(0, SCORES))
    return none_XP, none_XB, reference_X, gl.zeros([X], gl.float32, ROW), b_B


@gluon.jit
def _even(q, keys, bars, shared, index_ptr, scale_log2, J: gl.constexpr):
    """Scores of even tiles and sums of the left half of the channels: (sums, their reference, sum of own powers)."""
    q_L, q_R, q_rope = q
    kv_L, kv_R, kv_rope = keys
    q_ready, ready, free, handed = bars
    odd_powers, references, _ = shared
    sum_XP, none_XB, reference_X, total_X, b_B = _nothing()
    sum_XP = warpgroup_mma_init(sum_XP)
    mbarrier.wait(q_ready, 0)
    for n in range(J // (2 * B)):
        phase = n & 1
        here_B = gl.load(index_ptr + 2 * n * B + b_B) >= 0
        mbarrier.wait(ready.index(0), phase)
        score_XB = _score(q_L, kv_L.index(0), warpgroup_mma_init(none_XB))
        sum_XP, score_XB = warpgroup_mma_wait(0, deps=(sum_XP, score_XB))
        if n > 0:
            async_copy.mbarrier_arrive(free.index(2), increment_count=False)
        mbarrier.wait(ready.index(1), phase)
        score_XB = _score(q_R, kv_R.index(0), warpgroup_mma_init(score_XB))
        score_XB = warpgroup_mma(q_rope, kv_rope.index(0).permute([1, 0]), score_XB, is_async=True)
        score_XB = warpgroup_mma_wait(0, deps=(score_XB,))
        scaled_XB = gl.where(here_B[None, :], score_XB * scale_log2, -float("inf"))
        largest_X = gl.max(scaled_XB, 1)
        if gl.max(largest_X - reference_X, 0) > EXCESS:
            raised_X = gl.where(largest_X > reference_X + EXCESS, largest_X, reference_X)
            below_X = gl.exp2(reference_X - raised_X)
            sum_XP = _by_row(sum_XP, below_X)
            total_X = total_X * below_X
            reference_X = raised_X
        power_XB = gl.exp2(scaled_XB - reference_X[:, None])
        total_X += gl.sum(power_XB, 1)
        _hand_over(kv_rope.index(0), power_XB.to(q_L.dtype), references.index(0), reference_X, handed.index(0))
        sum_XP = warpgroup_mma(kv_rope.index(0), kv_L.index(0), sum_XP, is_async=True)
        sum_XP = warpgroup_mma_wait(0, deps=(sum_XP,))
        async_copy.mbarrier_arrive(free.index(0), increment_count=False)
        async_copy.mbarrier_arrive(free.index(1), increment_count=False)
        mbarrier.wait(handed.index(1), phase)
        raised_X = references.index(1).load(ROW)
        below_X = gl.exp2(reference_X - raised_X)
        if gl.max(raised_X - reference_X, 0) > 0:
            sum_XP = _by_row(sum_XP, below_X)
        total_X = total_X * below_X
        reference_X = raised_X
        sum_XP = warpgroup_mma(odd_powers, kv_L.index(1), sum_XP, is_async=True)
    sum_XP = warpgroup_mma_wait(0, deps=(sum_XP,))
    return sum_XP, reference_X, total_X


@gluon.jit
def _odd(q, keys, bars, shared, index_ptr, scale_log2, J: gl.constexpr):
    """Scores of odd tiles and sums of the right half of the channels: (sums, their reference, sum of own powers)."""
    q_L, q_R, q_rope = q
    kv_L, kv_R, kv_rope = keys
    q_ready, ready, free, handed = bars
    odd_powers, references, _ = shared
    sum_XP, none_XB, reference_X, total_X, b_B = _nothing()
    mbarrier.wait(q_ready, 0)
    for n in range(J // (2 * B)):
        phase = n & 1
        here_B = gl.load(index_ptr + (2 * n + 1) * B + b_B) >= 0
        mbarrier.wait(ready.index(3), phase)
        score_XB = _score(q_R, kv_R.index(1), warpgroup_mma_init(none_XB))
        score_XB = warpgroup_mma(q_rope, kv_rope.index(1).permute([1, 0]), score_XB, is_async=True)
        mbarrier.wait(ready.index(2), phase)
        score_XB = _score(q_L, kv_L.index(1), score_XB)
        score_XB = warpgroup_mma_wait(0, deps=(score_XB,))
        scaled_XB = gl.where(here_B[None, :], score_XB * scale_log2, -float("inf"))
        largest_X = gl.max(scaled_XB, 1)
        mbarrier.wait(handed.index(0), phase)
        first_X = references.index(0).load(ROW)
        raised_X = gl.where(largest_X > first_X + EXCESS, largest_X, first_X)
        rises = gl.max(raised_X - reference_X, 0) > 0
        if rises:
            sum_XP = _by_row(sum_XP, gl.exp2(reference_X - first_X))
        sum_XP = warpgroup_mma(kv_rope.index(0), kv_R.index(0), sum_XP, is_async=True)
        power_XB = gl.exp2(scaled_XB - raised_X[:, None])
        total_X = total_X * gl.exp2(reference_X - raised_X) + gl.sum(power_XB, 1)
        _hand_over(odd_powers, power_XB.to(q_L.dtype), references.index(1), raised_X, handed.index(1))
        sum_XP = warpgroup_mma_wait(0, deps=(sum_XP,))
        async_copy.mbarrier_arrive(free.index(1), increment_count=False)
        if rises:
            sum_XP = _by_row(sum_XP, gl.exp2(first_X - raised_X))
        reference_X = raised_X
        sum_XP = warpgroup_mma(odd_powers, kv_R.index(1), sum_XP, is_async=True)
        sum_XP = warpgroup_mma_wait(0, deps=(sum_XP,))
        async_copy.mbarrier_arrive(free.index(3), increment_count=False)
    return sum_XP, reference_X, total_X


@gluon.jit
def _sums(SIDE: gl.constexpr, q, keys, bars, shared, pointers, scale_log2, h_0, H, J: gl.constexpr, D: gl.constexpr):
    """Half of the channels of the output, and the left half's group the logarithms of sums of exponentials."""
    index_ptr, out_ptr, lse_ptr = pointers
    _, _, totals = shared
    handed = bars[3]
    if SIDE == 0:
        sum_XP, reference_X, total_X = _even(q, keys, bars, shared, index_ptr, scale_log2, J)
    else:
        sum_XP, reference_X, total_X = _odd(q, keys, bars, shared, index_ptr, scale_log2, J)
    totals.index(SIDE).store(total_X)
    barrier()
    mbarrier.arrive(handed.index(2 + SIDE), count=1)
    mbarrier.wait(handed.index(3 - SIDE), 0)
    total_X += totals.index(1 - SIDE).load(ROW)
    total_X = gl.where(total_X > 0, total_X, 1.0)
    if SIDE == 0:
        h_X = gl.arange(0, X, layout=ROW)
        gl.store(lse_ptr + h_X, reference_X + gl.log2(total_X), mask=h_0 + h_X < H)
    rows = q[SIDE]
    rows.store(_by_row(sum_XP, 1.0 / total_X).to(rows.dtype))
    barrier()
    L: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    h_X = gl.arange(0, X, layout=gl.SliceLayout(1, L))
    p_P = SIDE * P + gl.arange(0, P, layout=gl.SliceLayout(0, L))
    gl.store(out_ptr + (h_X * D)[:, None] + p_P[None, :], rows.load(L), mask=(h_0 + h_X < H)[:, None])


@gluon.jit
def _attend(q_ptr, kv_ptr, index_ptr, out_ptr, lse_ptr, H, blocks, scale_log2, J: gl.constexpr, C: gl.constexpr):
    """One query's block of heads."""
    t, h_0 = (gl.program_id(0) // blocks).to(gl.int64), gl.program_id(0) % blocks * X
    element: gl.constexpr = kv_ptr.dtype.element_ty
    tiled: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    q_L = gl.allocate_shared_memory(element, [X, P], tiled)
    q_R = gl.allocate_shared_memory(element, [X, P], tiled)
    q_rope = gl.allocate_shared_memory(element, [X, R], tiled)
    kv_L = gl.allocate_shared_memory(element, [2, B, P], tiled)
    kv_R = gl.allocate_shared_memory(element, [2, B, P], tiled)
    kv_rope = gl.allocate_shared_memory(element, [2, B, R], tiled)
    odd_powers = gl.allocate_shared_memory(element, [X, B], tiled)
    references = gl.allocate_shared_memory(gl.float32, [2, X], flat)
    totals = gl.allocate_shared_memory(gl.float32, [2, X], flat)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    handed = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=THREADS)
    for i in gl.static_range(4):
        mbarrier.init(ready.index(i), count=THREADS)
        # Both groups read the right half of the even tile: the left one, its rope's place, where its own powers lie.
        mbarrier.init(free.index(i), count=2 * THREADS if i == 1 else THREADS)
        mbarrier.init(handed.index(i), count=1)
    q, keys, bars = (q_L, q_R, q_rope), (kv_L, kv_R, kv_rope), (q_ready, ready, free, handed)
    shared = (odd_powers, references, totals)
    D: gl.constexpr = 2 * P
    index_ptr += t * J
    row = t * H + h_0
    pointers = (index_ptr, out_ptr + row * D, lse_ptr + row)
    gathered = (q_ptr + row * C, kv_ptr, index_ptr)
    gl.warp_specialize(
        [
            (_sums, (0, q, keys, bars, shared, pointers, scale_log2, h_0, H, J, D)),
            (_sums, (1, q, keys, bars, shared, pointers, scale_log2, h_0, H, J, D)),
            (_gather, (q, keys, bars, gathered, h_0, H, J, C)),
        ],
        [4, 4],
        [216, 72],
    )


def attend(
    q_THC: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    scale: float,
    o_THD: torch.Tensor,
    lse_TH: torch.Tensor,
) -> None:
    """Write the outputs and the logarithms to base 2 of each head's sum of exponentials."""
    (T, H, C), J = q_THC.shape, index_TJ.shape[1]
    blocks = triton.cdiv(H, HEADS)
    arguments = (q_THC, kv_SC, index_TJ, o_THD, lse_TH, H, blocks, scale * LOG2_E)
    _attend[(T * blocks,)](*arguments, J=J, C=C, **LAUNCH)

"""Gradients of the keys that queries chose on Hopper: what `kernels.sparse_scatter` adds, faster.

One program adds half of the channels of one query's share: it holds those of all heads' queries and gradients in shared
memory. One group of warps fetches gradients of scores and probabilities, 64 keys a tile; two others multiply, one the
even and one the odd tiles, so that one's products run while the other adds its own to memory.

Legend: T queries, H heads, J chosen keys, B keys of one tile, C channels of a key, D those of the latent, P and R the
two parts of a program's channels, X and Y the two parts of its heads, W the heads of all programs.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.hopper_language import copy_to_shared
from kernels.sparse_tiles import Parts

B = gl.constexpr(64)
P, R = gl.constexpr(256), gl.constexpr(32)
PIECE = gl.constexpr(64)
STAGES = gl.constexpr(4)
THREADS = gl.constexpr(128)
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.constexpr_function
def _four_in_a_row(N):
    """How a group of warps holds what it adds to 64 keys: four channels a thread, a line of memory eight threads."""
    of_thread = [[0, 1], [0, 2], [8, 0], [4, 0]] + [[0, 32]] * (N == 64)
    return gl.DistributedLinearLayout(
        of_thread, [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], [[16, 0], [32, 0]], [], [64, N]
    )


@gluon.jit
def _copy(to, ptr, row_0, width: gl.constexpr, first, rows, columns: gl.constexpr, L: gl.constexpr):
    """Some columns of some rows; rows and columns past the last are zeros."""
    h_X = row_0 + gl.arange(0, to.shape[0], layout=gl.SliceLayout(1, L))
    p_P = first + gl.arange(0, to.shape[1], layout=gl.SliceLayout(0, L))
    here_XP = (h_X < rows)[:, None] & (p_P < columns)[None, :]
    copy_to_shared(to, ptr + (h_X * width)[:, None] + p_P[None, :], mask=here_XP)


@gluon.jit
def _fetch(held, stages, bars, pointers, sizes, first, J: gl.constexpr, C: gl.constexpr, D: gl.constexpr):
    """Copy the program's channels of all heads once, then each tile's gradients of scores and probabilities."""
    q_XP, q_YP, q_XR, q_YR, do_XP, do_YP, do_XR, do_YR = held
    ds_X, ds_Y, p_X, p_Y = stages
    held_ready, ready, free = bars
    q_ptr, do_ptr, ds_ptr, p_ptr = pointers
    H, W = sizes
    X: gl.constexpr = q_XP.shape[0]
    Y: gl.constexpr = q_YP.shape[0]
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    S: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    _copy(q_XP, q_ptr, 0, C, first, H, C, L)
    _copy(q_YP, q_ptr, X, C, first, H, C, L)
    _copy(q_XR, q_ptr, 0, C, first + P, H, C, S)
    _copy(q_YR, q_ptr, X, C, first + P, H, C, S)
    _copy(do_XP, do_ptr, 0, D, first, H, D, L)
    _copy(do_YP, do_ptr, X, D, first, H, D, L)
    _copy(do_XR, do_ptr, 0, D, first + P, H, D, S)
    _copy(do_YR, do_ptr, X, D, first + P, H, D, S)
    async_copy.mbarrier_arrive(held_ready, increment_count=False)
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    s_B = gl.arange(0, B, layout=gl.SliceLayout(1, S))
    h_X = gl.arange(0, X, layout=gl.SliceLayout(0, L))
    h_Y = X + gl.arange(0, Y, layout=gl.SliceLayout(0, S))
    for n in range(J // B):
        stage = n % STAGES
        at_BX = ((n * B + b_B) * W)[:, None] + h_X[None, :]
        at_BY = ((n * B + s_B) * W)[:, None] + h_Y[None, :]
        mbarrier.wait(free.index(stage), (n // STAGES & 1) ^ 1)
        copy_to_shared(ds_X.index(stage), ds_ptr + at_BX)
        copy_to_shared(ds_Y.index(stage), ds_ptr + at_BY)
        copy_to_shared(p_X.index(stage), p_ptr + at_BX)
        copy_to_shared(p_Y.index(stage), p_ptr + at_BY)
        async_copy.mbarrier_arrive(ready.index(stage), increment_count=False)


@gluon.jit
def _add(dkv_ptr, index_B, first, x_BN, C: gl.constexpr):
    """Add what neighbouring channels of 64 keys get."""
    N: gl.constexpr = x_BN.shape[1]
    L: gl.constexpr = _four_in_a_row(N)
    index_B = gl.convert_layout(index_B, gl.SliceLayout(1, L), assert_trivial=True)
    row_B1 = (gl.maximum(index_B, 0).to(gl.int64) * C)[:, None]
    at_BN = dkv_ptr + row_B1 + (first + gl.arange(0, N, layout=gl.SliceLayout(0, L)))[None, :]
    gl.atomic_add(at_BN, gl.convert_layout(x_BN, L), mask=(index_B >= 0)[:, None], sem="relaxed")


@gluon.jit
def _multiply(SIDE: gl.constexpr, held, stages, bars, dkv_ptr, index_ptr, first, J: gl.constexpr, C: gl.constexpr):
    """Products of every second tile with the held channels, added to the keys' gradients."""
    q_XP, q_YP, q_XR, q_YR, do_XP, do_YP, do_XR, do_YR = held
    ds_X, ds_Y, p_X, p_Y = stages
    held_ready, ready, free = bars
    LP: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    LR: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, R, 16])
    mbarrier.wait(held_ready, 0)
    for n in range(SIDE, J // B, 2):
        stage = n % STAGES
        index_B = gl.load(index_ptr + n * B + gl.arange(0, B, layout=gl.SliceLayout(1, _four_in_a_row(PIECE))))
        sum_BP = gl.zeros([B, P], gl.float32, LP)
        sum_BR = gl.zeros([B, R], gl.float32, LR)
        mbarrier.wait(ready.index(stage), n // STAGES & 1)
        sum_BP = warpgroup_mma(ds_X.index(stage), q_XP, sum_BP, is_async=True)
        sum_BR = warpgroup_mma(ds_X.index(stage), q_XR, sum_BR, is_async=True)
        sum_BP = warpgroup_mma(ds_Y.index(stage), q_YP, sum_BP, is_async=True)
        sum_BR = warpgroup_mma(ds_Y.index(stage), q_YR, sum_BR, is_async=True)
        sum_BP = warpgroup_mma(p_X.index(stage), do_XP, sum_BP, is_async=True)
        sum_BR = warpgroup_mma(p_X.index(stage), do_XR, sum_BR, is_async=True)
        sum_BP = warpgroup_mma(p_Y.index(stage), do_YP, sum_BP, is_async=True)
        sum_BR = warpgroup_mma(p_Y.index(stage), do_YR, sum_BR, is_async=True)
        sum_BP, sum_BR = warpgroup_mma_wait(0, deps=(sum_BP, sum_BR))
        async_copy.mbarrier_arrive(free.index(stage), increment_count=False)
        low, high = sum_BP.reshape([B, 2, 2 * PIECE]).permute([0, 2, 1]).split()
        a, b = low.reshape([B, 2, PIECE]).permute([0, 2, 1]).split()
        c, d = high.reshape([B, 2, PIECE]).permute([0, 2, 1]).split()
        _add(dkv_ptr, index_B, first, a, C)
        _add(dkv_ptr, index_B, first + PIECE, b, C)
        _add(dkv_ptr, index_B, first + 2 * PIECE, c, C)
        _add(dkv_ptr, index_B, first + 3 * PIECE, d, C)
        _add(dkv_ptr, index_B, first + P, sum_BR, C)


@gluon.jit
def _shares(p_ptr, ds_ptr, q_ptr, do_ptr, index_ptr, dkv_ptr, H, W, J: gl.constexpr, C: gl.constexpr, D: gl.constexpr,
            X: gl.constexpr, Y: gl.constexpr):  # fmt: skip
    """Half of the channels of one query's share."""
    t, first = (gl.program_id(0) // 2).to(gl.int64), gl.program_id(0) % 2 * (P + R)
    element: gl.constexpr = q_ptr.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    narrow: gl.constexpr = gl.NVMMASharedLayout(64, 16)
    q_XP = gl.allocate_shared_memory(element, [X, P], wide)
    q_YP = gl.allocate_shared_memory(element, [Y, P], wide)
    q_XR = gl.allocate_shared_memory(element, [X, R], narrow)
    q_YR = gl.allocate_shared_memory(element, [Y, R], narrow)
    do_XP = gl.allocate_shared_memory(element, [X, P], wide)
    do_YP = gl.allocate_shared_memory(element, [Y, P], wide)
    do_XR = gl.allocate_shared_memory(element, [X, R], narrow)
    do_YR = gl.allocate_shared_memory(element, [Y, R], narrow)
    ds_X = gl.allocate_shared_memory(element, [STAGES, B, X], wide)
    ds_Y = gl.allocate_shared_memory(element, [STAGES, B, Y], narrow)
    p_X = gl.allocate_shared_memory(element, [STAGES, B, X], wide)
    p_Y = gl.allocate_shared_memory(element, [STAGES, B, Y], narrow)
    held_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(held_ready, count=THREADS)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=THREADS)
    held, stages = (q_XP, q_YP, q_XR, q_YR, do_XP, do_YP, do_XR, do_YR), (ds_X, ds_Y, p_X, p_Y)
    bars = (held_ready, ready, free)
    index_ptr += t * J
    pointers = (q_ptr + t * H * C, do_ptr + t * H * D, ds_ptr + t * J * W, p_ptr + t * J * W)
    gl.warp_specialize(
        [
            (_multiply, (0, held, stages, bars, dkv_ptr, index_ptr, first, J, C)),
            (_multiply, (1, held, stages, bars, dkv_ptr, index_ptr, first, J, C)),
            (_fetch, (held, stages, bars, pointers, (H, W), first, J, C, D)),
        ],
        [4, 4],
        [216, 56],
    )


def add_shares(p_TJW: torch.Tensor, ds_TJW: torch.Tensor, q_THC: torch.Tensor, do_THD: torch.Tensor,
               index_TJ: torch.Tensor, heads: Parts, dkv_SC: torch.Tensor) -> None:  # fmt: skip
    """Add the shares of all queries to *dkv_SC*, in fp32."""
    (T, H, C), J, D = q_THC.shape, index_TJ.shape[1], do_THD.shape[2]
    arguments = (p_TJW, ds_TJW, q_THC, do_THD, index_TJ, dkv_SC, H, heads.width)
    _shares[(2 * T,)](*arguments, J=J, C=C, D=D, X=heads.x, Y=heads.y, **LAUNCH)

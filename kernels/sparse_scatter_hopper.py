"""Gradients of the keys that queries chose on Hopper: what `kernels.sparse_scatter` adds, faster.

One program adds half of the channels of one query's share: it holds those of all heads' queries and gradients in shared
memory. One group of warps fetches gradients of scores and probabilities, 64 keys a tile; two others multiply, one the
even and one the odd tiles, so that one's products run while the other adds its own to memory.

Legend: T queries, H heads, J chosen keys, B keys of one tile, C channels of a key, D those of the latent, P and R the
two parts of a program's channels, X the heads of one part, W those of all parts.
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

from kernels.hopper_language import before, copy_to_shared, copy_weights

B = gl.constexpr(64)
P, R = gl.constexpr(256), gl.constexpr(32)
PIECE = gl.constexpr(64)
MOST_STAGES = 4
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
def _hold(held, ptr, first, heads, width: gl.constexpr):
    """Copy the program's channels of a part's rows, P and then R."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    S: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    head_0, H = heads
    _copy(held[0], ptr, head_0, width, first, H, width, L)
    _copy(held[1], ptr, head_0, width, first + P, H, width, S)


@gluon.jit
def _fetch(held, stages, bars, pointers, sizes, first, J: gl.constexpr, C: gl.constexpr, D: gl.constexpr,
           WIDTHS: gl.constexpr):  # fmt: skip
    """Copy the program's channels of all heads once, then each tile's gradients of scores and probabilities."""
    q, do = held
    ds, p = stages
    held_ready, ready, free = bars
    q_ptr, do_ptr, ds_ptr, p_ptr = pointers
    H, W = sizes
    STAGES: gl.constexpr = ready.shape[0]
    for i in gl.static_range(len(WIDTHS)):
        _hold(q[i], q_ptr, first, (before(WIDTHS, i), H), C)
        _hold(do[i], do_ptr, first, (before(WIDTHS, i), H), D)
    async_copy.mbarrier_arrive(held_ready, increment_count=False)
    for n in range(J // B):
        stage = n % STAGES
        mbarrier.wait(free.index(stage), (n // STAGES & 1) ^ 1)
        for i in gl.static_range(len(WIDTHS)):
            copy_weights(ds[i].index(stage), ds_ptr + n * B * W + before(WIDTHS, i), W, B)
            copy_weights(p[i].index(stage), p_ptr + n * B * W + before(WIDTHS, i), W, B)
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
def _multiply(SIDE: gl.constexpr, held, stages, bars, dkv_ptr, index_ptr, first, J: gl.constexpr, C: gl.constexpr,
              WIDTHS: gl.constexpr):  # fmt: skip
    """Products of every second tile with the held channels, added to the keys' gradients."""
    q, do = held
    ds, p = stages
    held_ready, ready, free = bars
    STAGES: gl.constexpr = ready.shape[0]
    LP: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    LR: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, R, 16])
    mbarrier.wait(held_ready, 0)
    for n in range(SIDE, J // B, 2):
        stage = n % STAGES
        index_B = gl.load(index_ptr + n * B + gl.arange(0, B, layout=gl.SliceLayout(1, _four_in_a_row(PIECE))))
        sum_BP = gl.zeros([B, P], gl.float32, LP)
        sum_BR = gl.zeros([B, R], gl.float32, LR)
        mbarrier.wait(ready.index(stage), n // STAGES & 1)
        for i in gl.static_range(len(WIDTHS)):
            sum_BP = warpgroup_mma(ds[i].index(stage), q[i][0], sum_BP, is_async=True)
            sum_BR = warpgroup_mma(ds[i].index(stage), q[i][1], sum_BR, is_async=True)
            sum_BP = warpgroup_mma(p[i].index(stage), do[i][0], sum_BP, is_async=True)
            sum_BR = warpgroup_mma(p[i].index(stage), do[i][1], sum_BR, is_async=True)
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
def _rows(element: gl.constexpr, X: gl.constexpr):
    """Place for the program's channels of a part's rows."""
    of_P = gl.allocate_shared_memory(element, [X, P], gl.NVMMASharedLayout(128, 16))
    return of_P, gl.allocate_shared_memory(element, [X, R], gl.NVMMASharedLayout(2 * R, 16))


@gluon.jit
def _weights(element: gl.constexpr, STAGES: gl.constexpr, X: gl.constexpr):
    """Place for the weights of some tiles' keys for a part of the heads."""
    return gl.allocate_shared_memory(element, [STAGES, B, X], gl.NVMMASharedLayout(min(2 * X, 128), 16))


@gluon.jit
def _shares(p_ptr, ds_ptr, q_ptr, do_ptr, index_ptr, dkv_ptr, H, W, J: gl.constexpr, C: gl.constexpr, D: gl.constexpr,
            WIDTHS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Half of the channels of one query's share."""
    t, first = (gl.program_id(0) // 2).to(gl.int64), gl.program_id(0) % 2 * (P + R)
    element: gl.constexpr = q_ptr.dtype.element_ty
    q, do, ds, p = (), (), (), ()
    for i in gl.static_range(len(WIDTHS)):
        q += (_rows(element, WIDTHS[i]),)
        do += (_rows(element, WIDTHS[i]),)
        ds += (_weights(element, STAGES, WIDTHS[i]),)
        p += (_weights(element, STAGES, WIDTHS[i]),)
    held_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(held_ready, count=THREADS)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=THREADS)
    held, stages, bars = (q, do), (ds, p), (held_ready, ready, free)
    index_ptr += t * J
    pointers = (q_ptr + t * H * C, do_ptr + t * H * D, ds_ptr + t * J * W, p_ptr + t * J * W)
    gl.warp_specialize(
        [
            (_multiply, (0, held, stages, bars, dkv_ptr, index_ptr, first, J, C, WIDTHS)),
            (_multiply, (1, held, stages, bars, dkv_ptr, index_ptr, first, J, C, WIDTHS)),
            (_fetch, (held, stages, bars, pointers, (H, W), first, J, C, D, WIDTHS)),
        ],
        [4, 4],
        [216, 56],
    )


def add_shares(p_TJW: torch.Tensor, ds_TJW: torch.Tensor, q_THC: torch.Tensor, do_THD: torch.Tensor,
               index_TJ: torch.Tensor, widths: tuple[int, ...], dkv_SC: torch.Tensor) -> None:  # fmt: skip
    """Add the shares of all queries to *dkv_SC*, in fp32."""
    (T, H, C), J, D = q_THC.shape, index_TJ.shape[1], do_THD.shape[2]
    stages = MOST_STAGES if sum(widths) <= 96 else 2
    arguments = (p_TJW, ds_TJW, q_THC, do_THD, index_TJ, dkv_SC, H, sum(widths))
    _shares[(2 * T,)](*arguments, J=J, C=C, D=D, WIDTHS=widths, STAGES=stages, **LAUNCH)

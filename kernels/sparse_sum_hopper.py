"""Sums over each query's chosen keys on Hopper: what `kernels.sparse_sum` computes, faster.

One program sums 512 channels for all heads of one query, so that every key and weight is fetched once. One group of
warps fetches keys and weights, 32 keys a step; two others multiply, each half of the channels, which stay in its
registers.

Legend: T queries, H heads, J chosen keys, B keys of one step, C channels of a key, E those of a row of the result, P
those of one group of warps, X and Y the two parts of a program's heads, W the heads of all programs.
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

from kernels.hopper_language import barrier, copy_to_shared
from kernels.sparse_tiles import Parts

B = gl.constexpr(32)
P = gl.constexpr(256)
STAGES = gl.constexpr(5)
THREADS = gl.constexpr(128)


@gluon.jit
def _fetch(buffers, bars, pointers, W, J: gl.constexpr, C: gl.constexpr):
    """Copy the keys and weights of each step."""
    kv, weight_X, weight_Y = buffers
    ready, free = bars
    kv_ptr, weight_ptr, index_ptr = pointers
    X: gl.constexpr = weight_X.shape[2]
    Y: gl.constexpr = weight_Y.shape[2]
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    LY: gl.constexpr = gl.BlockedLayout([1, 8], [32 // (Y // 8), Y // 8], [4, 1], [1, 0])
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    h_X = gl.arange(0, X, layout=gl.SliceLayout(0, L))
    h_Y = X + gl.arange(0, Y, layout=gl.SliceLayout(0, LY))
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    bY_B = gl.arange(0, B, layout=gl.SliceLayout(1, LY))
    index_B = gl.load(index_ptr + b_B)
    for n in range(J // B):
        stage = n % STAGES
        at_BP = kv_ptr + (gl.maximum(index_B, 0).to(gl.int64) * C)[:, None] + p_P[None, :]
        here_B1 = (index_B >= 0)[:, None]
        index_B = gl.load(index_ptr + gl.minimum(n + 1, J // B - 1) * B + b_B)
        mbarrier.wait(free.index(stage), (n // STAGES & 1) ^ 1)
        copy_to_shared(weight_X.index(stage), weight_ptr + ((n * B + b_B) * W)[:, None] + h_X[None, :])
        copy_to_shared(weight_Y.index(stage), weight_ptr + ((n * B + bY_B) * W)[:, None] + h_Y[None, :])
        copy_to_shared(kv.index(stage), at_BP, mask=here_B1)
        copy_to_shared(kv.index(STAGES + stage), at_BP + P, mask=here_B1)
        async_copy.mbarrier_arrive(ready.index(stage), increment_count=False)


@gluon.jit
def _write(rows_HP, sums_PH, out_ptr, h_0, H, E: gl.constexpr):
    """Sums of 32 heads through shared memory, whose rows they become."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    rows_HP.permute([1, 0]).store(sums_PH.to(rows_HP.dtype))
    barrier()
    h_H = h_0 + gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    gl.store(out_ptr + (h_H * E)[:, None] + p_P[None, :], rows_HP.load(L), mask=(h_H < H)[:, None])


@gluon.jit
def _multiply(
    SIDE: gl.constexpr, buffers, bars, out_ptr, per_ptr, H, J: gl.constexpr, E: gl.constexpr, SCALED: gl.constexpr
):
    """Sums of half of the channels for both parts of heads."""
    kv, weight_X, weight_Y = buffers
    ready, free = bars
    X: gl.constexpr = weight_X.shape[2]
    Y: gl.constexpr = weight_Y.shape[2]
    LX: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, X, 16])
    LY: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, Y, 16])
    x_PX = gl.zeros([P, X], gl.float32, LX)
    y_PY = gl.zeros([P, Y], gl.float32, LY)
    for n in range(J // B):
        stage = n % STAGES
        mbarrier.wait(ready.index(stage), n // STAGES & 1)
        kv_PB = kv.index(SIDE * STAGES + stage).permute([1, 0])
        x_PX = warpgroup_mma(kv_PB, weight_X.index(stage), x_PX, is_async=True)
        y_PY = warpgroup_mma(kv_PB, weight_Y.index(stage), y_PY, is_async=True)
        x_PX, y_PY = warpgroup_mma_wait(2, deps=(x_PX, y_PY))
        if n > 0:
            async_copy.mbarrier_arrive(free.index((n - 1) % STAGES), increment_count=False)
    x_PX, y_PY = warpgroup_mma_wait(0, deps=(x_PX, y_PY))
    barrier()
    if SCALED:
        x_PX = x_PX * gl.load(per_ptr + gl.arange(0, X, layout=gl.SliceLayout(0, LX)))[None, :]
        y_PY = y_PY * gl.load(per_ptr + X + gl.arange(0, Y, layout=gl.SliceLayout(0, LY)))[None, :]
    out_ptr += SIDE * P
    low, high = x_PX.reshape([P, 2, 32]).permute([0, 2, 1]).split()
    _write(kv.index(SIDE * STAGES), low, out_ptr, 0, H, E)
    _write(kv.index(SIDE * STAGES + 1), high, out_ptr, 32, H, E)
    _write(kv.index(SIDE * STAGES + 2), y_PY, out_ptr, X, H, E)


@gluon.jit
def _sum(weight_ptr, kv_ptr, index_ptr, out_ptr, per_ptr, H, W, J: gl.constexpr, C: gl.constexpr, E: gl.constexpr,
         X: gl.constexpr, Y: gl.constexpr, SCALED: gl.constexpr):  # fmt: skip
    """The first 2 P channels of one query's sums."""
    t = gl.program_id(0).to(gl.int64)
    element: gl.constexpr = kv_ptr.dtype.element_ty
    kv = gl.allocate_shared_memory(element, [2 * STAGES, B, P], gl.NVMMASharedLayout(128, 16))
    weight_X = gl.allocate_shared_memory(element, [STAGES, B, X], gl.NVMMASharedLayout(2 * X, 16))
    weight_Y = gl.allocate_shared_memory(element, [STAGES, B, Y], gl.NVMMASharedLayout(2 * Y, 16))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=2 * THREADS)
    buffers, bars = (kv, weight_X, weight_Y), (ready, free)
    out_ptr += t * H * E
    per_ptr += t * W
    gl.warp_specialize(
        [
            (_multiply, (0, buffers, bars, out_ptr, per_ptr, H, J, E, SCALED)),
            (_multiply, (1, buffers, bars, out_ptr, per_ptr, H, J, E, SCALED)),
            (_fetch, (buffers, bars, (kv_ptr, weight_ptr + t * J * W, index_ptr + t * J), W, J, C)),
        ],
        [4, 4],
        [232, 40],
    )


def sum_latents(weight_TJW: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, heads: Parts,
                out_THE: torch.Tensor, per_TW: torch.Tensor | None) -> None:  # fmt: skip
    """Write the sums of the first 512 channels, times *per_TW* where there is one."""
    T, H, E = out_THE.shape
    scale = weight_TJW if per_TW is None else per_TW
    sides = {"J": index_TJ.shape[1], "C": kv_SC.shape[1], "E": E, "X": heads.x, "Y": heads.y}
    arguments = (weight_TJW, kv_SC, index_TJ, out_THE, scale, H, heads.width)
    _sum[(T,)](*arguments, **sides, SCALED=per_TW is not None, num_warps=4, maxnreg=168)

"""Sums over each query's chosen keys on Hopper: what `kernels.sparse_sum` computes of gradients of queries, faster.

One program sums 512 channels for up to 96 heads of one query, so that every key and weight is fetched once for them.
One group of warps fetches keys and weights, 32 keys a step; two others multiply, each half of the channels, which stay
in its registers.

Legend: T queries, H heads, J chosen keys, B keys of one step, C channels of a key, E those of a row of the result, P
those of one group of warps, X the heads of one part, W those of all parts and programs.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    mbarrier,
    warpgroup_mma,
)

from kernels.hopper_language import barrier, before, copy_to_shared, copy_weights, waited

B = gl.constexpr(32)
P = gl.constexpr(256)
STAGES = gl.constexpr(5)
THREADS = gl.constexpr(128)


@gluon.jit
def _fetch(kv, weights, bars, pointers, W, J: gl.constexpr, C: gl.constexpr, WIDTHS: gl.constexpr):
    """Copy the keys and weights of each step."""
    ready, free = bars
    kv_ptr, weight_ptr, index_ptr = pointers
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    index_B = gl.load(index_ptr + b_B)
    for n in range(J // B):
        stage = n % STAGES
        at_BP = kv_ptr + (gl.maximum(index_B, 0).to(gl.int64) * C)[:, None] + p_P[None, :]
        here_B1 = (index_B >= 0)[:, None]
        index_B = gl.load(index_ptr + gl.minimum(n + 1, J // B - 1) * B + b_B)
        mbarrier.wait(free.index(stage), (n // STAGES & 1) ^ 1)
        for part in gl.static_range(len(WIDTHS)):
            copy_weights(weights[part].index(stage), weight_ptr + n * B * W + before(WIDTHS, part), W, B)
        copy_to_shared(kv.index(stage), at_BP, mask=here_B1)
        copy_to_shared(kv.index(STAGES + stage), at_BP + P, mask=here_B1)
        async_copy.mbarrier_arrive(ready.index(stage), increment_count=False)


@gluon.jit
def _write(rows_HP, sums_PH, out_ptr, heads, E: gl.constexpr):
    """Sums of 32 heads through shared memory, whose rows they become."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    rows_HP.permute([1, 0]).store(sums_PH.to(rows_HP.dtype))
    barrier()
    h_H = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    p_P = gl.arange(0, P, layout=gl.SliceLayout(0, L))
    gl.store(out_ptr + (h_H * E)[:, None] + p_P[None, :], rows_HP.load(L), mask=(h_H < heads)[:, None])


@gluon.jit
def _zeros(X: gl.constexpr):
    return gl.zeros([P, X], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, X, 16]))


@gluon.jit
def _multiply(SIDE: gl.constexpr, kv, weights, bars, out_ptr, heads, J: gl.constexpr, E: gl.constexpr,
              WIDTHS: gl.constexpr):  # fmt: skip
    """Sums of half of the channels for each part of the heads."""
    ready, free = bars
    sums = ()
    for part in gl.static_range(len(WIDTHS)):
        sums += (_zeros(WIDTHS[part]),)
    for n in range(J // B):
        stage = n % STAGES
        mbarrier.wait(ready.index(stage), n // STAGES & 1)
        kv_PB = kv.index(SIDE * STAGES + stage).permute([1, 0])
        added = ()
        for part in gl.static_range(len(WIDTHS)):
            added += (warpgroup_mma(kv_PB, weights[part].index(stage), sums[part], is_async=True),)
        sums = waited(added, len(WIDTHS), WIDTHS)
        if n > 0:
            async_copy.mbarrier_arrive(free.index((n - 1) % STAGES), increment_count=False)
    sums = waited(sums, 0, WIDTHS)
    barrier()
    out_ptr += SIDE * P
    for part in gl.static_range(len(WIDTHS)):
        if WIDTHS[part] == 64:
            low, high = sums[part].reshape([P, 2, 32]).permute([0, 2, 1]).split()
            _write(kv.index(SIDE * STAGES), low, out_ptr, heads, E)
            _write(kv.index(SIDE * STAGES + 1), high, out_ptr + 32 * E, heads - 32, E)
        else:
            at: gl.constexpr = before(WIDTHS, part)
            _write(kv.index(SIDE * STAGES + 2), sums[part], out_ptr + at * E, heads - at, E)


@gluon.jit
def _places(element: gl.constexpr, X: gl.constexpr):
    """Place for the weights of some steps' keys for a part of the heads."""
    return gl.allocate_shared_memory(element, [STAGES, B, X], gl.NVMMASharedLayout(2 * X, 16))


@gluon.jit
def _sum(weight_ptr, kv_ptr, index_ptr, out_ptr, H, W, J: gl.constexpr, C: gl.constexpr, E: gl.constexpr,
         WIDTHS: gl.constexpr, PROGRAMS: gl.constexpr):  # fmt: skip
    """The first 2 P channels of one query's sums for a program's heads."""
    t = (gl.program_id(0) // PROGRAMS).to(gl.int64)
    head_0 = gl.program_id(0) % PROGRAMS * before(WIDTHS, len(WIDTHS))
    element: gl.constexpr = kv_ptr.dtype.element_ty
    kv = gl.allocate_shared_memory(element, [2 * STAGES, B, P], gl.NVMMASharedLayout(128, 16))
    weights = ()
    for part in gl.static_range(len(WIDTHS)):
        weights += (_places(element, WIDTHS[part]),)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=2 * THREADS)
    bars = (ready, free)
    out_ptr += (t * H + head_0) * E
    heads = H - head_0
    pointers = (kv_ptr, weight_ptr + t * J * W + head_0, index_ptr + t * J)
    gl.warp_specialize(
        [
            (_multiply, (0, kv, weights, bars, out_ptr, heads, J, E, WIDTHS)),
            (_multiply, (1, kv, weights, bars, out_ptr, heads, J, E, WIDTHS)),
            (_fetch, (kv, weights, bars, pointers, W, J, C, WIDTHS)),
        ],
        [4, 4],
        [232, 40],
    )


def sum_latents(
    weight_TJW: torch.Tensor,
    kv_SC: torch.Tensor,
    index_TJ: torch.Tensor,
    widths: tuple[int, ...],
    out_THE: torch.Tensor,
) -> None:
    """Write the sums of the first 512 channels; of 128 heads, 64 a program."""
    T, H, E = out_THE.shape
    programs = triton.cdiv(max(widths), 64)
    sides = {"J": index_TJ.shape[1], "C": kv_SC.shape[1], "E": E, "PROGRAMS": programs}
    each = widths if programs == 1 else (64,)
    arguments = (weight_TJW, kv_SC, index_TJ, out_THE, H, sum(widths))
    _sum[(T * programs,)](*arguments, **sides, WIDTHS=each, num_warps=4, maxnreg=168)

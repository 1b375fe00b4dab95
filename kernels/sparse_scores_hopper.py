"""Scores of each query's chosen keys on Hopper: what `kernels.sparse_attention` and its backward pass compute, faster.

One program holds the rows of all heads of one query in shared memory. One group of warps gathers its keys, 64 channels
of 64 at a time, into a ring of slots; two others multiply, one the even and one the odd tiles of keys, so that one's
products run while the other takes powers and writes. Heads are multiplied in an order in which a thread's columns are
neighbours in memory. Copies of this kind need no fence before the products, as in Triton's own pipelines.

Legend: T queries, H heads, J chosen keys, B keys of one tile, C channels of a key, E those multiplied, K those of one
slot, X and Y the two parts of a program's heads, W the heads of all programs, N = J / B.
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
from kernels.sparse_tiles import LOG2_E, Parts

KEYS = 64
B = gl.constexpr(KEYS)
K = gl.constexpr(64)
SLOTS = gl.constexpr(14)
THREADS = gl.constexpr(128)
LOWEST = gl.constexpr(-1e30)
EXCESS = gl.constexpr(64)
LAUNCH = {"num_warps": 4, "maxnreg": 168}
POWERS, PROBABILITIES, GRADIENTS = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)


@gluon.jit
def _multiplied_as(n):
    """The head that is the n-th to be multiplied."""
    return n // 32 * 32 + n % 8 // 2 * 8 + n % 32 // 8 * 2 + n % 2


@gluon.constexpr_function
def _eight_in_a_row(X):
    """How a group of warps holds a tile: eight neighbouring heads of a key a thread, then the key eight further on."""
    of_thread = [[0, 1], [0, 2], [0, 4], [8, 0]] + [[0, 32]] * (X == 64)
    return gl.DistributedLinearLayout(
        of_thread, [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [KEYS, X]
    )


@gluon.jit
def _neighbours(x_BX):
    """Columns in the order of heads; a thread keeps what it has."""
    X: gl.constexpr = x_BX.shape[1]
    split = x_BX.reshape([B, X // 32, 4, 4, 2]).permute([0, 1, 3, 2, 4])
    return gl.convert_layout(split.reshape([B, X]), _eight_in_a_row(X), assert_trivial=True)


@gluon.jit
def _gather(heads, ring, pointers, H, J: gl.constexpr, C: gl.constexpr, E: gl.constexpr):
    """Copy the heads' rows once, then the keys of every tile, K channels at a time."""
    heads_X, heads_Y, heads_ready = heads
    slots, ready, free = ring
    y_ptr, kv_ptr, index_ptr = pointers
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    STEPS: gl.constexpr = E // K
    k_K = gl.arange(0, K, layout=gl.SliceLayout(0, L))
    h_X = _multiplied_as(gl.arange(0, heads_X.shape[1], layout=gl.SliceLayout(1, L)))
    h_Y = heads_X.shape[1] + _multiplied_as(gl.arange(0, heads_Y.shape[1], layout=gl.SliceLayout(1, L)))
    for c in gl.static_range(STEPS):
        at_K = y_ptr + (c * K + k_K)[None, :]
        copy_to_shared(heads_X.index(c), at_K + (h_X * E)[:, None], mask=(h_X < H)[:, None])
        copy_to_shared(heads_Y.index(c), at_K + (h_Y * E)[:, None], mask=(h_Y < H)[:, None])
    async_copy.mbarrier_arrive(heads_ready, increment_count=False)
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    index_B = gl.load(index_ptr + b_B)
    for n in range(J // B):
        at_BK = kv_ptr + (gl.maximum(index_B, 0).to(gl.int64) * C)[:, None] + k_K[None, :]
        here_B1 = (index_B >= 0)[:, None]
        index_B = gl.load(index_ptr + gl.minimum(n + 1, J // B - 1) * B + b_B)
        for c in gl.static_range(STEPS):
            i = n * STEPS + c
            slot = i % SLOTS
            mbarrier.wait(free.index(slot), (i // SLOTS & 1) ^ 1)
            copy_to_shared(slots.index(slot), at_BK + c * K, mask=here_B1)
            async_copy.mbarrier_arrive(ready.index(slot), increment_count=False)


@gluon.jit
def _products(n, heads, ring, E: gl.constexpr):
    """One tile's products with both parts of heads."""
    heads_X, heads_Y, _ = heads
    slots, ready, free = ring
    X: gl.constexpr = heads_X.shape[1]
    Y: gl.constexpr = heads_Y.shape[1]
    STEPS: gl.constexpr = E // K
    LX: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, X, 16])
    LY: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, Y, 16])
    x_BX = gl.zeros([B, X], gl.float32, LX)
    y_BY = gl.zeros([B, Y], gl.float32, LY)
    for c in gl.static_range(STEPS):
        i = n * STEPS + c
        mbarrier.wait(ready.index(i % SLOTS), i // SLOTS & 1)
        x_BX = warpgroup_mma(slots.index(i % SLOTS), heads_X.index(c).permute([1, 0]), x_BX, is_async=True)
        y_BY = warpgroup_mma(slots.index(i % SLOTS), heads_Y.index(c).permute([1, 0]), y_BY, is_async=True)
        if c > 0:
            x_BX, y_BY = warpgroup_mma_wait(2, deps=(x_BX, y_BY))
            async_copy.mbarrier_arrive(free.index((i - 1) % SLOTS), increment_count=False)
    x_BX, y_BY = warpgroup_mma_wait(0, deps=(x_BX, y_BY))
    async_copy.mbarrier_arrive(free.index((n * STEPS + STEPS - 1) % SLOTS), increment_count=False)
    return _neighbours(x_BX), _neighbours(y_BY)


@gluon.jit
def _raised(x_BX, reference_X, sum_QX):
    """(the reference, where a score exceeds it by too much the tile's largest; the sums below it)."""
    largest_X = gl.maximum(gl.max(x_BX, 0), LOWEST)
    raised_X = gl.where(largest_X > reference_X + EXCESS, largest_X, reference_X)
    below_X = gl.exp2(reference_X - raised_X)
    return raised_X, sum_QX * gl.convert_layout(below_X, gl.SliceLayout(0, sum_QX.type.layout))[None, :]


@gluon.jit
def _in_thread(x_BX):
    """Sums of the keys that a thread holds of each head."""
    X: gl.constexpr = x_BX.shape[1]
    return gl.sum(x_BX.reshape([4, 2, 8, X]), 1).reshape([32, X])


@gluon.jit
def _write_powers(SIDE: gl.constexpr, heads, ring, pointers, references, W, scale_log2, J: gl.constexpr,
                  E: gl.constexpr):  # fmt: skip
    """Powers of two of every second tile, below the query's first tile's largest scores while those suffice."""
    index_ptr, power_ptr, largest_ptr, sum_ptr = pointers
    common_X, common_Y, known = references
    X: gl.constexpr = common_X.shape[0]
    Y: gl.constexpr = common_Y.shape[0]
    LX: gl.constexpr = _eight_in_a_row(X)
    LY: gl.constexpr = _eight_in_a_row(Y)
    h_X = gl.arange(0, X, layout=gl.SliceLayout(0, LX))
    h_Y = X + gl.arange(0, Y, layout=gl.SliceLayout(0, LY))
    reference_X = gl.full([X], LOWEST, gl.float32, gl.SliceLayout(0, LX))
    reference_Y = gl.full([Y], LOWEST, gl.float32, gl.SliceLayout(0, LY))
    sum_QX = _in_thread(gl.zeros([B, X], gl.float32, LX))
    sum_QY = _in_thread(gl.zeros([B, Y], gl.float32, LY))
    for n in range(SIDE, J // B, 2):
        b_B = n * B + gl.arange(0, B, layout=gl.SliceLayout(1, LX))
        y_B = n * B + gl.arange(0, B, layout=gl.SliceLayout(1, LY))
        here_B = gl.load(index_ptr + b_B) >= 0
        x_BX, y_BY = _products(n, heads, ring, E)
        x_BX = gl.where(here_B[:, None], x_BX * scale_log2, -float("inf"))
        y_BY = gl.where(gl.convert_layout(here_B, gl.SliceLayout(1, LY))[:, None], y_BY * scale_log2, -float("inf"))
        if n == 1:
            mbarrier.wait(known, 0)
            reference_X = common_X.load(gl.SliceLayout(0, LX))
            reference_Y = common_Y.load(gl.SliceLayout(0, LY))
        excess_BY = gl.max((x_BX - reference_X[None, :]).reshape([B, X // Y, Y]), 1)
        excess_BY = gl.convert_layout(excess_BY, LY, assert_trivial=True)
        excess_BY = gl.maximum(excess_BY, y_BY - reference_Y[None, :])
        if gl.max(excess_BY.reshape([B * Y]), 0) > EXCESS:
            reference_X, sum_QX = _raised(x_BX, reference_X, sum_QX)
            reference_Y, sum_QY = _raised(y_BY, reference_Y, sum_QY)
        if n == 0:
            common_X.store(reference_X)
            common_Y.store(reference_Y)
            barrier()
            mbarrier.arrive(known)
        x_BX, y_BY = gl.exp2(x_BX - reference_X[None, :]), gl.exp2(y_BY - reference_Y[None, :])
        sum_QX += _in_thread(x_BX)
        sum_QY += _in_thread(y_BY)
        gl.store(power_ptr + (b_B * W)[:, None] + h_X[None, :], x_BX.to(power_ptr.dtype.element_ty))
        gl.store(power_ptr + (y_B * W)[:, None] + h_Y[None, :], y_BY.to(power_ptr.dtype.element_ty))
        gl.store(largest_ptr + n * W + h_X, reference_X)
        gl.store(largest_ptr + n * W + h_Y, reference_Y)
    # The side's last tile, whose references are those of the sums, carries them for all of its tiles.
    last = (J // B - 1 - SIDE) // 2 * 2 + SIDE
    if last < J // B:
        s_X, s_Y = gl.sum(sum_QX, 0), gl.sum(sum_QY, 0)
        gl.store(sum_ptr + last * W + gl.arange(0, X, layout=s_X.type.layout), s_X)
        gl.store(sum_ptr + last * W + X + gl.arange(0, Y, layout=s_Y.type.layout), s_Y)


@gluon.jit
def _write_gradients(SIDE: gl.constexpr, heads, ring, pointers, sizes, scales, J: gl.constexpr, E: gl.constexpr,
                     VALUES: gl.constexpr):  # fmt: skip
    """Probabilities of every second tile; VALUES: the gradients of its scores, by probabilities written before."""
    index_ptr, p_ptr, ds_ptr, vector_ptr = pointers
    H, W = sizes
    scale, scale_log2 = scales
    X: gl.constexpr = heads[0].shape[1]
    Y: gl.constexpr = heads[1].shape[1]
    LX: gl.constexpr = _eight_in_a_row(X)
    LY: gl.constexpr = _eight_in_a_row(Y)
    h_X = gl.arange(0, X, layout=gl.SliceLayout(0, LX))
    h_Y = X + gl.arange(0, Y, layout=gl.SliceLayout(0, LY))
    vector_X = gl.load(vector_ptr + h_X, mask=h_X < H, other=0.0)
    vector_Y = gl.load(vector_ptr + h_Y, mask=h_Y < H, other=0.0)
    for n in range(SIDE, J // B, 2):
        b_B = n * B + gl.arange(0, B, layout=gl.SliceLayout(1, LX))
        y_B = n * B + gl.arange(0, B, layout=gl.SliceLayout(1, LY))
        at_BX = (b_B * W)[:, None] + h_X[None, :]
        at_BY = (y_B * W)[:, None] + h_Y[None, :]
        if VALUES:
            p_BX, p_BY = gl.load(p_ptr + at_BX), gl.load(p_ptr + at_BY)
            x_BX, y_BY = _products(n, heads, ring, E)
            x_BX = p_BX.to(gl.float32) * (x_BX - vector_X[None, :]) * scale
            y_BY = p_BY.to(gl.float32) * (y_BY - vector_Y[None, :]) * scale
            gl.store(ds_ptr + at_BX, x_BX.to(ds_ptr.dtype.element_ty))
            gl.store(ds_ptr + at_BY, y_BY.to(ds_ptr.dtype.element_ty))
        else:
            here_B = gl.load(index_ptr + b_B) >= 0
            x_BX, y_BY = _products(n, heads, ring, E)
            here_BX = here_B[:, None] & (h_X < H)[None, :]
            here_BY = gl.convert_layout(here_B, gl.SliceLayout(1, LY))[:, None] & (h_Y < H)[None, :]
            x_BX = gl.where(here_BX, gl.exp2(x_BX * scale_log2 - vector_X[None, :]), 0.0)
            y_BY = gl.where(here_BY, gl.exp2(y_BY * scale_log2 - vector_Y[None, :]), 0.0)
            gl.store(p_ptr + at_BX, x_BX.to(p_ptr.dtype.element_ty))
            gl.store(p_ptr + at_BY, y_BY.to(p_ptr.dtype.element_ty))


@gluon.jit
def _multiply(SIDE: gl.constexpr, heads, ring, pointers, references, sizes, scales, J: gl.constexpr, E: gl.constexpr,
              MODE: gl.constexpr):  # fmt: skip
    mbarrier.wait(heads[2], 0)
    if MODE == POWERS:
        _write_powers(SIDE, heads, ring, pointers, references, sizes[1], scales[1], J, E)
    else:
        _write_gradients(SIDE, heads, ring, pointers, sizes, scales, J, E, MODE == GRADIENTS)


@gluon.jit
def _scores(y_ptr, kv_ptr, index_ptr, first_ptr, second_ptr, third_ptr, H, W, scale, scale_log2, J: gl.constexpr,
            C: gl.constexpr, E: gl.constexpr, X: gl.constexpr, Y: gl.constexpr, MODE: gl.constexpr):  # fmt: skip
    """All scores of one query: powers, references and sums written; or probabilities, or gradients by them."""
    t = gl.program_id(0).to(gl.int64)
    element: gl.constexpr = kv_ptr.dtype.element_ty
    tiled: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    heads_X = gl.allocate_shared_memory(element, [E // K, X, K], tiled)
    heads_Y = gl.allocate_shared_memory(element, [E // K, Y, K], tiled)
    slots = gl.allocate_shared_memory(element, [SLOTS, B, K], tiled)
    common_X = gl.allocate_shared_memory(gl.float32, [X], flat)
    common_Y = gl.allocate_shared_memory(gl.float32, [Y], flat)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    once = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=THREADS)
    mbarrier.init(once.index(0), count=THREADS)
    mbarrier.init(once.index(1), count=1)
    heads, ring, sizes, scales = (heads_X, heads_Y, once.index(0)), (slots, ready, free), (H, W), (scale, scale_log2)
    references = (common_X, common_Y, once.index(1))
    index_ptr += t * J
    first_ptr += t * J * W
    if MODE == POWERS:
        pointers = (index_ptr, first_ptr, second_ptr + t * (J // B) * W, third_ptr + t * (J // B) * W)
    else:
        pointers = (index_ptr, first_ptr, second_ptr + t * J * W, third_ptr + t * H)
    gathered = (y_ptr + t * H * E, kv_ptr, index_ptr)
    gl.warp_specialize(
        [
            (_multiply, (0, heads, ring, pointers, references, sizes, scales, J, E, MODE)),
            (_multiply, (1, heads, ring, pointers, references, sizes, scales, J, E, MODE)),
            (_gather, (heads, ring, gathered, H, J, C, E)),
        ],
        [4, 4],
        [216, 64],
    )


def _launch(y_THE: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, tensors: tuple[torch.Tensor, ...],
            heads: Parts, scale: float, mode: gl.constexpr) -> None:  # fmt: skip
    T, H, E = y_THE.shape
    sides = {"J": index_TJ.shape[1], "C": kv_SC.shape[1], "E": E, "X": heads.x, "Y": heads.y, "MODE": mode}
    arguments = (y_THE, kv_SC, index_TJ, *tensors, H, heads.width, scale, scale * LOG2_E)
    _scores[(T,)](*arguments, **sides, **LAUNCH)


def powers(
    q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, heads: Parts, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(powers of two [T, J, W], their references and their sums, both [T, N, W])."""
    T, J = index_TJ.shape
    power_TJW = q_THC.new_empty(T, J, heads.width)
    largest_TNW, sum_TNW = q_THC.new_zeros(2, T, J // KEYS, heads.width, dtype=torch.float32)
    _launch(q_THC, kv_SC, index_TJ, (power_TJW, largest_TNW, sum_TNW), heads, scale, POWERS)
    return power_TJW, largest_TNW, sum_TNW


def score_gradients(q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, do_THD: torch.Tensor,
                    lse_TH: torch.Tensor, along_TH: torch.Tensor, heads: Parts, scale: float, p_TJW: torch.Tensor,
                    ds_TJW: torch.Tensor) -> None:  # fmt: skip
    """Write probabilities, then the gradients of the scores by them."""
    _launch(q_THC, kv_SC, index_TJ, (p_TJW, ds_TJW, lse_TH), heads, scale, PROBABILITIES)
    _launch(do_THD, kv_SC, index_TJ, (p_TJW, ds_TJW, along_TH), heads, scale, GRADIENTS)

"""Scores of each query's chosen keys and their gradients on Hopper: what `kernels.sparse_attention_backward` computes.

One program holds the rows of all heads of one query in shared memory: the queries themselves, then the gradients of
the output. One group of warps gathers its keys, 64 channels of 64 at a time, into a ring of slots; two others multiply,
one the even and one the odd tiles of keys, so that one's products run while the other takes powers and writes. Heads
are multiplied in an order in which a thread's columns are neighbours in memory. Copies of this kind need no fence
before the products, as in Triton's own pipelines.

Legend: T queries, H heads, J chosen keys, B keys of one tile, C channels of a key, E those multiplied, K those of one
slot, X the heads of one part, W those of all parts.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    mbarrier,
    warpgroup_mma,
)

from kernels.hopper_language import before, copy_to_shared, waited
from kernels.sparse_tiles import LOG2_E

KEYS = 64
B = gl.constexpr(KEYS)
K = gl.constexpr(64)
THREADS = gl.constexpr(128)
MOST_SLOTS, SLOT_BYTES, SHARED_BYTES = 14, 2 * 64 * KEYS, 225 * 1024
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.jit
def _multiplied_as(n):
    """The head that is the n-th to be multiplied."""
    return n // 32 * 32 + n % 8 // 2 * 8 + n % 32 // 8 * 2 + n % 2


@gluon.constexpr_function
def _eight_in_a_row(X):
    """How a group of warps holds a tile: eight neighbouring heads of a key a thread, then the key eight further on."""
    of_thread = [[0, 1], [0, 2], [0, 4], [8, 0]] + [[0, x] for x in (32, 64) if x < X]
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
def _copy_heads(rows, y_ptr, head_0, H, E: gl.constexpr):
    """Copy one part's rows, K channels at a time; heads past the last are zeros."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    k_K = gl.arange(0, K, layout=gl.SliceLayout(0, L))
    h_X = head_0 + _multiplied_as(gl.arange(0, rows.shape[1], layout=gl.SliceLayout(1, L)))
    for c in gl.static_range(E // K):
        copy_to_shared(rows.index(c), y_ptr + (h_X * E)[:, None] + (c * K + k_K)[None, :], mask=(h_X < H)[:, None])


@gluon.jit
def _gather(heads, ring, pointers, H, J: gl.constexpr, C: gl.constexpr, E: gl.constexpr, WIDTHS: gl.constexpr):
    """Copy the heads' rows once, then the keys of every tile, K channels at a time."""
    parts, heads_ready = heads
    slots, ready, free = ring
    y_ptr, kv_ptr, index_ptr = pointers
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    STEPS: gl.constexpr = E // K
    SLOTS: gl.constexpr = ready.shape[0]
    for part in gl.static_range(len(WIDTHS)):
        _copy_heads(parts[part], y_ptr, before(WIDTHS, part), H, E)
    async_copy.mbarrier_arrive(heads_ready, increment_count=False)
    k_K = gl.arange(0, K, layout=gl.SliceLayout(0, L))
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
def _zeros(X: gl.constexpr):
    return gl.zeros([B, X], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, X, 16]))


@gluon.jit
def _products(n, parts, ring, E: gl.constexpr, WIDTHS: gl.constexpr):
    """One tile's products with each part of the heads."""
    slots, ready, free = ring
    STEPS: gl.constexpr = E // K
    SLOTS: gl.constexpr = ready.shape[0]
    sums = ()
    for p in gl.static_range(len(WIDTHS)):
        sums += (_zeros(WIDTHS[p]),)
    for c in gl.static_range(STEPS):
        i = n * STEPS + c
        mbarrier.wait(ready.index(i % SLOTS), i // SLOTS & 1)
        added = ()
        for p in gl.static_range(len(WIDTHS)):
            heads_KX = parts[p].index(c).permute([1, 0])
            added += (warpgroup_mma(slots.index(i % SLOTS), heads_KX, sums[p], is_async=True),)
        sums = added
        if c > 0:
            sums = waited(sums, len(WIDTHS), WIDTHS)
            async_copy.mbarrier_arrive(free.index((i - 1) % SLOTS), increment_count=False)
    sums = waited(sums, 0, WIDTHS)
    async_copy.mbarrier_arrive(free.index((n * STEPS + STEPS - 1) % SLOTS), increment_count=False)
    rows = ()
    for p in gl.static_range(len(WIDTHS)):
        rows += (_neighbours(sums[p]),)
    return rows


@gluon.jit
def _write(score_BX, known_BX, vector_X, here_B, out_ptr, at_BX, inside_X, scale, scale_log2, VALUES: gl.constexpr):
    """Probabilities of one part; VALUES: gradients of its scores, by the probabilities known."""
    if VALUES:
        out_BX = known_BX.to(gl.float32) * (score_BX - vector_X[None, :]) * scale
    else:
        here_B = gl.convert_layout(here_B, gl.SliceLayout(1, score_BX.type.layout))
        power_BX = gl.exp2(score_BX * scale_log2 - vector_X[None, :])
        out_BX = gl.where(here_B[:, None] & inside_X[None, :], power_BX, 0.0)
    gl.store(out_ptr + at_BX, out_BX.to(out_ptr.dtype.element_ty))


@gluon.jit
def _multiply(SIDE: gl.constexpr, heads, ring, pointers, sizes, scales, J: gl.constexpr, E: gl.constexpr,
              WIDTHS: gl.constexpr, VALUES: gl.constexpr):  # fmt: skip
    """Every second tile of one query."""
    parts, heads_ready = heads
    index_ptr, p_ptr, out_ptr, vector_ptr = pointers
    H, W = sizes
    scale, scale_log2 = scales
    L: gl.constexpr = gl.SliceLayout(1, _eight_in_a_row(WIDTHS[0]))
    h, vectors = (), ()
    for i in gl.static_range(len(WIDTHS)):
        h_X = before(WIDTHS, i) + gl.arange(0, WIDTHS[i], layout=gl.SliceLayout(0, _eight_in_a_row(WIDTHS[i])))
        h += (h_X,)
        vectors += (gl.load(vector_ptr + h_X, mask=h_X < H, other=0.0),)
    mbarrier.wait(heads_ready, 0)
    for n in range(SIDE, J // B, 2):
        here_B = gl.load(index_ptr + n * B + gl.arange(0, B, layout=L)) >= 0
        at, known = (), ()
        for i in gl.static_range(len(WIDTHS)):
            b_B = n * B + gl.arange(0, B, layout=gl.SliceLayout(1, _eight_in_a_row(WIDTHS[i])))
            at += ((b_B * W)[:, None] + h[i][None, :],)
            known += (gl.load(p_ptr + at[i]) if VALUES else here_B,)
        sums = _products(n, parts, ring, E, WIDTHS)
        for i in gl.static_range(len(WIDTHS)):
            _write(sums[i], known[i], vectors[i], here_B, out_ptr, at[i], h[i] < H, scale, scale_log2, VALUES)


@gluon.jit
def _scores(y_ptr, kv_ptr, index_ptr, p_ptr, out_ptr, vector_ptr, H, W, scale, scale_log2, J: gl.constexpr,
            C: gl.constexpr, E: gl.constexpr, WIDTHS: gl.constexpr, SLOTS: gl.constexpr,
            VALUES: gl.constexpr):  # fmt: skip
    """All scores of one query: probabilities by logarithms of sums, or VALUES: gradients by probabilities."""
    t = gl.program_id(0).to(gl.int64)
    element: gl.constexpr = kv_ptr.dtype.element_ty
    tiled: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    parts = ()
    for i in gl.static_range(len(WIDTHS)):
        parts += (gl.allocate_shared_memory(element, [E // K, WIDTHS[i], K], tiled),)
    slots = gl.allocate_shared_memory(element, [SLOTS, B, K], tiled)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    heads_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(ready.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=THREADS)
    mbarrier.init(heads_ready, count=THREADS)
    heads, ring, sizes, scales = (parts, heads_ready), (slots, ready, free), (H, W), (scale, scale_log2)
    index_ptr += t * J
    pointers = (index_ptr, p_ptr + t * J * W, out_ptr + t * J * W, vector_ptr + t * H)
    gathered = (y_ptr + t * H * E, kv_ptr, index_ptr)
    gl.warp_specialize(
        [
            (_multiply, (0, heads, ring, pointers, sizes, scales, J, E, WIDTHS, VALUES)),
            (_multiply, (1, heads, ring, pointers, sizes, scales, J, E, WIDTHS, VALUES)),
            (_gather, (heads, ring, gathered, H, J, C, E, WIDTHS)),
        ],
        [4, 4],
        [216, 64],
    )


def score_gradients(q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, do_THD: torch.Tensor,
                    lse_TH: torch.Tensor, along_TH: torch.Tensor, widths: tuple[int, ...], scale: float,
                    p_TJW: torch.Tensor, ds_TJW: torch.Tensor) -> None:  # fmt: skip
    """Write probabilities, then the gradients of the scores by them."""
    for y_THE, out_TJW, vector_TH in ((q_THC, p_TJW, lse_TH), (do_THD, ds_TJW, along_TH)):
        T, H, E = y_THE.shape
        slots = min(MOST_SLOTS, (SHARED_BYTES - 2 * E * sum(widths)) // SLOT_BYTES)
        sides = {"J": index_TJ.shape[1], "C": kv_SC.shape[1], "E": E, "WIDTHS": widths, "SLOTS": slots}
        arguments = (y_THE, kv_SC, index_TJ, p_TJW, out_TJW, vector_TH, H, sum(widths), scale, scale * LOG2_E)
        _scores[(T,)](*arguments, **sides, VALUES=out_TJW is ds_TJW, **LAUNCH)

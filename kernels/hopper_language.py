"""What kernels in Gluon, Triton's language of layouts and barriers, share, and names of it that changed after 3.6."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import async_copy, warpgroup_mma_wait

copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@builtin
def seen_as(memory, shape, layout, _semantic=None):
    """The same shared memory in another shape."""
    method = getattr(memory, "reinterpret", None) or memory._reinterpret
    return method(memory.dtype, shape, layout, _semantic=_semantic)


@gluon.constexpr_function
def before(WIDTHS, i):
    """Heads of the parts before part *i*."""
    return sum(WIDTHS[:i])


@gluon.jit
def waited(sums, LEFT: gl.constexpr, WIDTHS: gl.constexpr):
    """The sums once no more than some products are under way."""
    return (warpgroup_mma_wait(LEFT, deps=sums),) if len(WIDTHS) == 1 else warpgroup_mma_wait(LEFT, deps=sums)


@gluon.jit
def copy_weights(to, ptr, W, B: gl.constexpr):
    """Copy weights of B keys for one part of the heads; a key's weights lie W apart from the next one's."""
    columns: gl.constexpr = to.shape[1] // 8
    L: gl.constexpr = gl.BlockedLayout([1, 8], [32 // columns, columns], [4, 1], [1, 0])
    b_B = gl.arange(0, B, layout=gl.SliceLayout(1, L))
    h_X = gl.arange(0, to.shape[1], layout=gl.SliceLayout(0, L))
    copy_to_shared(to, ptr + (b_B * W)[:, None] + h_X[None, :])

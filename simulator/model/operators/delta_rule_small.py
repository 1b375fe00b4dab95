"""The delta rule by PyTorch operators in fp32, as `kernels/reference/kda.py` writes it and autograd differentiates it.

The decay between any two tokens of a chunk of C = 64, channel by channel, is a tensor of C d elements a token and head:
32 KiB at d = 128, passed over some twenty times forward and over thirty times backward. Its products with keys and
queries become one dot product for each pair of tokens, for which the matrix library has no good kernel. Each kernel
below was seen in a profile of both passes on an H200, where these kernels took nine tenths of the time; operators on
single tokens that took less than a hundredth of it are left out. A broadcast operand counts as often as it is read,
because such kernels are bound by the arithmetic of addresses.

Sequences run one after the other. Legend of the sizes: pair, C d elements; score, C elements; channel, d elements.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Saved
from simulator.model.operators.delta_rule import CHUNK, DeltaRule, Heads
from simulator.model.operators.lane import FP32_BYTES

_PRODUCTS_AT_ONCE = 65_535
"""Products of a batch that the matrix library takes in one launch."""
_READ_WRITE = 2 * FP32_BYTES
_ROWS = CHUNK - 1
"""Rows of the triangular inverse, made one after the other."""

_Step = tuple[str, float, int]
"""Kernel kind, bytes of a whole step for one token and head, launches."""


def small_operators(heads: Heads) -> DeltaRule:
    """Both passes, and what autograd keeps: decays, both products with keys, and the rows of the inverse."""
    pair, known_rows = CHUNK * heads.dim, _known_rows()
    kept = heads.rows * FP32_BYTES * (3 * pair + known_rows)
    forward = (*_decays(heads), *_inverse(), *_walk(heads))
    backward = (*_walk_back(heads), *_inverse_back(), *_decays_back(heads))
    return DeltaRule(
        forward=tuple(_kernel(heads, *step) for step in forward) + _matrix_products(heads, 1),
        backward=tuple(_kernel(heads, *step) for step in backward) + _matrix_products(heads, 2),
        saved=(Saved("delta_pairs", kept),),
        workspace_bytes=heads.rows * FP32_BYTES * 2.0 * pair,
        backward_workspace_bytes=heads.rows * FP32_BYTES * 3.0 * pair,
    )


def _known_rows() -> float:
    """Elements a token and head of all the rows that each row of the inverse reads: 1 + 2 + ... + 63 rows a chunk."""
    return _ROWS * CHUNK / 2


def _launches(heads: Heads) -> int:
    """Launches of one dot product for each pair of tokens."""
    return -(-heads.rows * CHUNK // _PRODUCTS_AT_ONCE)


def _decays(heads: Heads) -> tuple[_Step, ...]:
    """Casts and gates; differences of summed decays, their exponentials; k k^T and q k^T, each of two operators."""
    pair, channel = CHUNK * heads.dim, heads.dim
    product: tuple[_Step, ...] = (
        ("broadcast", _READ_WRITE * pair, 1),
        ("broadcast", _READ_WRITE * pair, 1),  # copied so that the channels of a pair lie together
        ("vector_products", _READ_WRITE * pair, _launches(heads)),
    )
    return (
        ("cast_up", 4 * (heads.lane.element_bytes + FP32_BYTES) * channel, 4),
        ("elementwise", 7 * _READ_WRITE * channel, 7),
        ("broadcast", 4 * _READ_WRITE * channel, 4),
        ("reduction", 2 * FP32_BYTES * channel, 2),
        ("scan", _READ_WRITE * channel, 1),
        ("broadcast", _READ_WRITE * pair, 1),  # differences
        ("copy", _READ_WRITE * pair, 1),  # masked out of place
        ("broadcast", _READ_WRITE * pair, 1),
        ("elementwise", _READ_WRITE * pair, 1),  # exponentials
        *product,
        *product,
    )


def _inverse() -> tuple[_Step, ...]:
    """Known rows stacked, multiplied by a row's coefficients, summed."""
    known = _known_rows()
    return (
        ("copy", _READ_WRITE * known, _ROWS),
        ("broadcast", _READ_WRITE * known, _ROWS),
        ("reduction", FP32_BYTES * known, _ROWS),
        ("broadcast", 2 * _READ_WRITE * CHUNK, 2 * _ROWS),
    )


def _walk(heads: Heads) -> tuple[_Step, ...]:
    """Element-wise steps of a chunk: twelve launches with its five products; the state is read and written thrice."""
    state = heads.dim * heads.dim / CHUNK
    return (("elementwise", 3 * _READ_WRITE * state + 4 * _READ_WRITE * heads.dim, 7 * _chunks(heads)),)


def _walk_back(heads: Heads) -> tuple[_Step, ...]:
    state = heads.dim * heads.dim / CHUNK
    return (("elementwise", 9 * _READ_WRITE * state + 12 * _READ_WRITE * heads.dim, 31 * _chunks(heads)),)


def _inverse_back() -> tuple[_Step, ...]:
    """As forward for both factors; the gradient of every slice is added to a whole matrix of zeros."""
    known = _known_rows()
    return (
        ("broadcast", 2 * _READ_WRITE * known, 4 * _ROWS),
        ("reduction", FP32_BYTES * known, _ROWS),
        ("copy", _READ_WRITE * known, 2 * _ROWS),
        ("fill", 2 * _ROWS * FP32_BYTES * CHUNK, 4 * _ROWS),
        ("broadcast", 2 * _ROWS * 3 * FP32_BYTES * CHUNK, 33 * _ROWS),
    )


def _decays_back(heads: Heads) -> tuple[_Step, ...]:
    """Outer products for both products of pairs, sums over either token, then the exponentials and their mask."""
    pair = CHUNK * heads.dim
    product: tuple[_Step, ...] = (
        ("vector_products", 2 * _READ_WRITE * pair, 2 * _launches(heads)),
        ("broadcast", 2 * _READ_WRITE * pair, 2),
        ("reduction", 2 * FP32_BYTES * pair, 2),
    )
    return (
        *product,
        *product,
        ("elementwise", 3 * FP32_BYTES * pair, 1),  # both gradients of the decays added
        ("elementwise", 3 * FP32_BYTES * pair, 1),  # exponentials
        ("copy", _READ_WRITE * pair, 1),
        ("broadcast", _READ_WRITE * pair, 1),
        ("elementwise", _READ_WRITE * pair, 1),  # negated for the earlier token
        ("reduction", 2 * FP32_BYTES * pair, 2),
        ("elementwise", 12 * _READ_WRITE * heads.dim, 24),
        ("cast_down", 4 * (heads.lane.element_bytes + FP32_BYTES) * heads.dim, 4),
    )


def _matrix_products(heads: Heads, times: int) -> tuple[Kernel, ...]:
    """Both solutions of all chunks, then five products of each chunk with the state, *times* over, on fp32 cores."""
    d, rows = heads.dim, heads.rows
    solves = Kernel("gemm", 4.0 * CHUNK * d * rows, FP32_BYTES * rows * (4 * d + CHUNK), (rows, d, CHUNK), "fp32")
    flops, moved = (6.0 * d + 2 * CHUNK) * d * rows, FP32_BYTES * rows * (8 * d + 4 * d * d / CHUNK)
    walk = Kernel("gemm", flops, moved, (CHUNK * heads.count, d, d), "fp32", launches=5 * _chunks(heads))
    return (solves, walk) * times


def _chunks(heads: Heads) -> int:
    """Chunks of all sequences, whose launches wait for each other; rounded up."""
    return -(-heads.lane.count // CHUNK)


def _kernel(heads: Heads, kind: str, moved: float, launches: int) -> Kernel:
    return Kernel(kind, 0.0, moved * heads.rows, dtype="fp32", launches=launches)

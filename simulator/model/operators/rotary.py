"""Rotary position embedding on part of the queries and keys.

One kernel rotates in place: 3 FLOPs per element, a read and a write, and nothing saved but the shared table
(models_and_formulas section 3.3). Hugging Face builds rotate_half(x) from a negation and a concatenation, then two
products and a sum; backward, each half's slice is a zero fill and a copy.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Operator
from simulator.model.operators.lane import Lane, Step, chain, pointwise

_FLOPS_PER_ELEMENT = 3


def rotary(lane: Lane, *widths: int, whole: bool = True) -> Operator:
    """Rotation of tensors *widths* elements wide (queries, keys); not *whole*: slices that get joined again."""
    elements = [lane.count * width for width in widths]
    if lane.eager:
        forward = tuple(kernel for n in elements for kernel in _eager_forward(n, lane.element_bytes, whole=whole))
        backward = tuple(kernel for n in elements for kernel in _eager_backward(n, lane.element_bytes))
    else:
        launches = len(elements) if lane.execution == "compiled" else 1
        flops = _FLOPS_PER_ELEMENT * sum(elements)
        forward = (pointwise(2 * lane.element_bytes * sum(elements), flops, launches=launches),)
        backward = forward
    return Operator("rotary", forward, backward, output_bytes=lane.tensor_bytes(sum(widths)))


def _eager_forward(elements: int, b: int, *, whole: bool) -> tuple[Kernel, ...]:
    """Negation of one half, cat, x cos, rotated sin, sum; one more cat where the rotated slice joins the rest."""
    product, joined = Step("broadcast", 2 * b), Step("cat", 2 * b)
    rotated = (Step("broadcast", b), joined, product, product, Step("broadcast", 3 * b))
    return chain(elements, *rotated, *(() if whole else (joined,)))


def _eager_backward(elements: int, b: int) -> tuple[Kernel, ...]:
    """Two products, neg, zero fill and copy for each half, two sums of the three paths, a copy into linear layout."""
    product, half = Step("broadcast", 2 * b), Step("broadcast", b)
    halves = (Step("fill", b), half) * 2
    return chain(elements, product, product, half, *halves, 3 * b, Step("broadcast", 3 * b), Step("transpose", 2 * b))

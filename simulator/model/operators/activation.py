"""Activations of feed-forward parts: gated products and plain functions.

A fused gated activation reads gate and up (2 f) and writes f; its gradient reads 2 f + f and writes 2 f; it keeps gate
and up (models_and_formulas section 3.3). Eager PyTorch runs the function and the product apart and keeps the
function's result too. SiTU computes in fp32, so that its eager form makes fp32 copies of every step.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, pointwise

_FLOPS_PER_ELEMENT = {"silu": 5, "gelu": 8, "situ": 12, "relu2": 2, "swigluoai": 8}
_FP32_ACTIVATIONS = ("situ",)
_KIND = {"situ": "situ"}
"""Of the kernels of functions that memory does not bound."""


def activation(
    lane: Lane, name: str, source: str, width: int, function: str, *, gated: bool, joined: bool = False
) -> Operator:
    """*function* over *width* elements of the tensor named *source*, times its other half where *gated*.

    *joined*: one product makes gate and up side by side, so that eager kernels read halves of rows.
    """
    if not lane.eager:
        return _fused(lane, name, source, width, function, gated=gated)
    if function in _FP32_ACTIVATIONS:
        return _eager_fp32(lane, name, width)
    if gated:
        return _eager_gated(lane, name, source, width, "broadcast" if joined else "elementwise")
    return _eager_plain(lane, name, source, width, function)


def _fused(lane: Lane, name: str, source: str, width: int, function: str, *, gated: bool) -> Operator:
    flops, kind = _FLOPS_PER_ELEMENT.get(function, 5) * lane.count * width, _KIND.get(function, "elementwise")
    inputs, one = lane.tensor_bytes(2 * width if gated else width), lane.tensor_bytes(width)
    backward: tuple[Kernel, ...] = (pointwise(2 * inputs + one, 2 * flops, kind=kind),)
    if lane.megatron and gated:
        backward = _compiled_halves(lane, inputs, one, flops, kind)
    return Operator(
        name,
        forward=(pointwise(inputs + one, flops, kind=kind),),
        backward=backward,
        saved=(Saved(source, inputs),),
        output_bytes=one,
        rows=lane.rows,
    )


def _compiled_halves(lane: Lane, inputs: float, one: float, flops: float, kind: str) -> tuple[Kernel, ...]:
    """The gradient as Megatron-LM compiles it: the halves of the joined result are far apart, so that what both need,
    the result's gradient and gate, is read twice. The weights of routed rows get theirs from a second kernel.
    """
    halves = pointwise(2 * inputs + 3 * one, 2 * flops, kind=kind)
    weights = (pointwise(inputs + one, flops, kind="reduction"),) if lane.rows == "routed" else ()
    return halves, *weights


def _eager_gated(lane: Lane, name: str, source: str, width: int, kind: str) -> Operator:
    """silu(gate), then times up: the product keeps both factors; backward is two products and silu's gradient.

    *kind* is the sort of the kernels that read gate or up; the gradient of up reads neither.
    """
    elements, b = lane.count * width, lane.element_bytes
    return Operator(
        name,
        forward=chain(elements, Step(kind, 2 * b), Step(kind, 3 * b)),
        backward=chain(elements, Step(kind, 3 * b), 3 * b, Step(kind, 3 * b)),
        saved=(lane.saved(source, 2 * width), lane.saved(f"{name}.function", width)),
        output_bytes=elements * b,
        rows=lane.rows,
    )


def _eager_plain(lane: Lane, name: str, source: str, width: int, function: str) -> Operator:
    """One kernel for gelu; two for the squared relu, which keeps relu's result as well."""
    elements, b = lane.count * width, lane.element_bytes
    squared = function == "relu2"
    steps = 2 if squared else 1
    kept = (lane.saved(source, width),) + ((lane.saved(f"{name}.function", width),) if squared else ())
    return Operator(
        name,
        forward=chain(elements, *(2 * b,) * steps),
        backward=chain(elements, *(3 * b,) * steps),
        saved=kept,
        output_bytes=elements * b,
        rows=lane.rows,
    )


def _eager_fp32(lane: Lane, name: str, width: int) -> Operator:
    """SiTU, beta tanh(g / beta) sigmoid(g) beta2 tanh(u / beta2): two upcasts, nine fp32 kernels, one downcast.

    Autograd keeps g for the sigmoid's and both tanh results, the sigmoid's and the two factors of the last product.
    """
    elements, b = lane.count * width, lane.element_bytes
    unary, binary = 2 * FP32_BYTES, 3 * FP32_BYTES
    upcast, downcast = Step("cast_up", b + 4), Step("cast_down", 4 + b)
    forward = chain(elements, upcast, upcast, *(unary,) * 7, binary, binary, downcast)
    backward = chain(elements, upcast, *(binary,) * 7, *(unary,) * 4, binary, downcast, downcast)
    kept = tuple(
        lane.saved(f"{name}.{step}", width, FP32_BYTES) for step in ("tanh_gate", "sigmoid", "tanh_up", "gate", "up")
    )
    return Operator(
        name,
        forward=forward,
        backward=backward,
        saved=kept,
        output_bytes=elements * b,
        workspace_bytes=2 * FP32_BYTES * elements,
        backward_workspace_bytes=3 * FP32_BYTES * elements,
        rows=lane.rows,
    )

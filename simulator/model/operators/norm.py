"""RMSNorm and LayerNorm, in one kernel or as the chain of kernels that eager PyTorch runs.

One kernel reads and writes the tensor once, and keeps its input and one fp32 number a row (models_and_formulas section
3.3). Hugging Face's RMSNorm upcasts to fp32 first, so autograd keeps the fp32 copy and, for the scale's gradient, the
normalised product in the activations' format.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, pointwise

_FLOPS_PER_ELEMENT = 4
_GRADIENT_FLOPS_PER_ELEMENT = 10


@dataclass(frozen=True, slots=True)
class NormShape:
    """*groups* vectors of *width* elements in each row of the lane."""

    width: int
    groups: int = 1

    @property
    def elements(self) -> int:
        """Elements of one row."""
        return self.width * self.groups


def rms_norm(lane: Lane, name: str, source: str, shape: NormShape, weight: str) -> Operator:
    """RMSNorm of the tensor named *source*; its output belongs to whoever reads it next."""
    return _eager_rms_norm(lane, name, shape, weight) if lane.eager else _fused_norm(lane, name, source, shape, weight)


def either_norm(lane: Lane, name: str, source: str, shape: NormShape, weight: str, *, bias: bool) -> Operator:
    """LayerNorm where norms have a *bias*, RMSNorm elsewhere."""
    return (layer_norm if bias else rms_norm)(lane, name, source, shape, weight)


def layer_norm(lane: Lane, name: str, source: str, shape: NormShape, weight: str) -> Operator:
    """LayerNorm with a shift; one kernel in every mode, since PyTorch has one."""
    shift = weight.removesuffix("weight") + "bias"
    operator = _fused_norm(lane, name, source, shape, weight)
    return Operator(
        operator.name,
        operator.forward,
        operator.backward,
        operator.backward_weight,
        weights=(weight, shift),
        saved=operator.saved,
        output_bytes=operator.output_bytes,
    )


def _fused_norm(lane: Lane, name: str, source: str, shape: NormShape, weight: str) -> Operator:
    elements = lane.count * shape.elements
    one = lane.tensor_bytes(shape.elements)
    statistics = lane.count * shape.groups * FP32_BYTES
    return Operator(
        name,
        forward=(pointwise(2 * one + statistics, _FLOPS_PER_ELEMENT * elements, kind="norm"),),
        backward=(pointwise(3 * one + statistics, _GRADIENT_FLOPS_PER_ELEMENT * elements, kind="norm"),),
        backward_weight=(pointwise(2 * shape.width * FP32_BYTES, kind="norm"),),
        weights=(weight,),
        saved=(lane.saved(source, shape.elements), Saved(f"{name}.statistics", statistics)),
        output_bytes=one,
    )


def _eager_rms_norm(lane: Lane, name: str, shape: NormShape, weight: str) -> Operator:
    """x.float(); pow(2); mean; + eps; rsqrt; mul; cast back; times weight. *b* is the activations' element size.

    Backward: the weight's product, the cast, the two sides of the fp32 product, the mean's broadcast and the three
    kernels of pow's gradient (power 1, times 2, times the gradient), the sum of both paths, the last cast. The gradient
    of heads comes in the layout of attention, so that the kernels which read it are strided.
    """
    elements, b = lane.count * shape.elements, lane.element_bytes
    rows = lane.count * shape.groups
    kind = "broadcast" if shape.groups > 1 else "elementwise"
    upcast, downcast = Step("cast_up", b + 4), Step("cast_down", 4 + b)
    scaled, by_row, row_sum = Step("broadcast", 2 * b), Step("broadcast", 8, "fp32"), Step("reduction", 4, "fp32")
    forward = (
        *chain(elements, upcast, 8, row_sum),
        *chain(rows, 8, 8),
        *chain(elements, by_row, downcast, scaled),
    )
    backward = (
        *chain(elements, scaled, upcast, by_row, Step(kind, 12, "fp32"), row_sum),
        *chain(rows, 8, 8, 8),
        *chain(elements, by_row, Step("copy", 8), 8, 12, Step(kind, 12, "fp32"), downcast),
    )
    return Operator(
        name,
        forward=forward,
        backward=backward,
        backward_weight=chain(elements, Step(kind, 3 * b), Step("reduction", b)),
        weights=(weight,),
        saved=(
            # The square keeps it, and so does the product with the reciprocal root.
            Saved(f"{name}.fp32", elements * FP32_BYTES, nodes=2),
            Saved(f"{name}.normalised", elements * b, "weight_gradient", (weight,)),
        ),
        output_bytes=elements * b,
        workspace_bytes=4 * elements,
        backward_workspace_bytes=12 * elements,
    )

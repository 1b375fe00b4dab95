"""RMSNorm and LayerNorm, in one kernel or as the chain of kernels that eager PyTorch runs.

One kernel reads and writes the tensor once, and keeps its input and one fp32 number a row (models_and_formulas section
3.3). Hugging Face's RMSNorm upcasts to fp32 first, so autograd keeps the fp32 copy and, for the scale's gradient, the
normalised product in the activations' format.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, Strided, chain, pointwise

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
    kernels of pow's gradient (power 1, times 2, times the gradient), the sum of both paths, the last cast.
    """
    elements, b = lane.count * shape.elements, lane.element_bytes
    row_kernels = chain(lane.count * shape.groups, 2 * FP32_BYTES, 2 * FP32_BYTES)
    forward = (
        *chain(elements, Strided(b + 4), 8),
        pointwise(4 * elements, elements, kind="norm"),
        *row_kernels,
        *chain(elements, 8, 4 + b, Strided(2 * b)),
    )
    reduction = (pointwise(4 * elements, elements, kind="norm"),)
    row_gradients = chain(lane.count * shape.groups, *(2 * FP32_BYTES,) * 3)
    product_gradients = chain(elements, Strided(2 * b), Strided(b + 4), 8, 12)
    backward = product_gradients + reduction + row_gradients + chain(elements, Strided(4), 8, 8, 12, 12, 4 + b)
    return Operator(
        name,
        forward=forward,
        backward=backward,
        backward_weight=chain(elements, 3 * b, b, kind="norm"),
        weights=(weight,),
        saved=(
            lane.saved(f"{name}.fp32", shape.elements, FP32_BYTES),
            Saved(f"{name}.normalised", elements * b, "weight_gradient", (weight,)),
        ),
        output_bytes=elements * b,
        workspace_bytes=4 * elements,
        backward_workspace_bytes=12 * elements,
    )

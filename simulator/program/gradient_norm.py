"""The norm of gradients, which Megatron-LM bounds before an update (`core/optimizer/clip_grads.py`).

What a rank owns is cast, a tensor at a time, where it was summed in another format than it is added to weights in. Two
multi-tensor passes follow: the norm reads it, and clipping reads and writes it.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.operator import Kernel
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter
from simulator.program.fsdp import TENSORS_PER_KERNEL

_FP32_BYTES = 4


def format_of(element_bytes: int) -> str:
    """The format whose elements have so many bytes."""
    return "fp32" if element_bytes == _FP32_BYTES else "bf16"


def bound_norm(
    emitter: Emitter, costs: Costs, owned: float, tensors: int, *, summed_bytes: int, bounded_bytes: int
) -> None:
    """Write so for *owned* elements of *tensors*, of *summed_bytes* each that are cast to *bounded_bytes*."""

    def sweep(name: str, kind: str, element_bytes: int, width: int, launches: int) -> None:
        priced = costs.price(Kernel(kind, 0.0, float(owned * element_bytes), dtype=format_of(width)))
        emitter.compute(name, kind, replace(priced, launches=launches))

    if summed_bytes != bounded_bytes:
        name, kind = ("widen", "cast_up") if summed_bytes < bounded_bytes else ("narrow", "cast_down")
        sweep(f"{name} gradients", kind, summed_bytes + bounded_bytes, summed_bytes, tensors)
    multi = max(1, tensors // TENSORS_PER_KERNEL)
    sweep("gradient norm", "reduction", bounded_bytes, bounded_bytes, multi)
    sweep("clip gradients", "elementwise", 2 * bounded_bytes, bounded_bytes, multi)

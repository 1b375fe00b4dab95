"""Sigmoid gates: output * sigmoid(gate), as gated attention and shared experts use them."""

from __future__ import annotations

from simulator.model.operator import Operator
from simulator.model.operators.lane import Lane, Step, chain, pointwise

_FLOPS_PER_ELEMENT = 5


def sigmoid_gate(lane: Lane, name: str, source: str, gate: str, width: int, gate_width: int | None = None) -> Operator:
    """The tensor *source*, *width* wide, times the sigmoid of *gate* (*gate_width* wide: equal, or 1 and broadcast).

    One kernel keeps both inputs. Eager PyTorch keeps the product's two factors: the input and the sigmoid's result.
    """
    thin = width if gate_width is None else gate_width
    one, gates = lane.tensor_bytes(width), lane.tensor_bytes(thin)
    if lane.eager:
        b, elements = lane.element_bytes, lane.count * width
        product = 3 * b if thin == width else Step("broadcast", 2 * b)
        forward = chain(lane.count * thin, 2 * b) + chain(elements, product)
        backward = chain(elements, product, 3 * b) + chain(lane.count * thin, 3 * b)
        kept = (lane.saved(source, width), lane.saved(f"{gate}.sigmoid", thin))
    else:
        flops = _FLOPS_PER_ELEMENT * lane.count * width
        forward = (pointwise(2 * one + gates, flops),)
        backward = (pointwise(3 * one + 2 * gates, 2 * flops),)
        kept = (lane.saved(source, width), lane.saved(gate, thin))
    return Operator(name, forward, backward, saved=kept, output_bytes=one)

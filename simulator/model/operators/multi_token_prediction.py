"""A multi-token-prediction module: hidden states and a later token's embedding, normed, joined, sent through a layer.

h' = W [norm(h); norm(embedding)], W of shape (D, 2 D), then the module's layers and a norm; embedding and head are the
model's own, and a module adds a loss of its own (DeepSeek-V3 report, section 2.2). With tp, W's rows are split and its
result is gathered, as Megatron-LM does (`multi_token_prediction.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from simulator.model.architecture import Architecture, Layer
from simulator.model.operator import Operator, Workload, keep_once
from simulator.model.operators import embedding, loss
from simulator.model.operators.communication import enter, gather_columns
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import gathered_lane, own_lane, pointwise
from simulator.model.operators.layers import listed_operators
from simulator.model.operators.norm import NormShape, rms_norm

_HIDDEN = "prediction_hidden"
Part = tuple[Layer | None, tuple[Operator, ...]]
"""A layer of the module with its operators; None for what stands before the first and behind the last."""


def module_parts(
    architecture: Architecture, module: tuple[Layer, ...], workload: Workload, *, keeps_hidden: bool
) -> tuple[Part, ...]:
    """Operators of *module*, each with all that it saves (see `listed_operators`). It *keeps_hidden* states unless
    somebody else does: the final norm keeps the model's.
    """
    hidden = architecture.hidden
    layers: list[Part] = []
    for position, layer in enumerate(module):
        operators = listed_operators(architecture, replace(layer, index=0), workload)
        layers.append((layer, tuple(_prefixed(operator, f"{position}.") for operator in operators)))
    last = rms_norm(own_lane(workload), "shared_head_norm", "predicted", NormShape(hidden), "shared_head.norm.weight")
    return (None, tuple(_join(hidden, workload, keeps_hidden=keeps_hidden))), *layers, (None, (last,))


def module_embedding(architecture: Architecture, workload: Workload, *, adds: bool) -> tuple[Operator, ...]:
    """The embedding of the tokens that a module looks ahead to; its gradient *adds* to one that is there already."""
    return embedding.embedding(replace(architecture, tied_embeddings=adds), workload)


def module_loss(
    architecture: Architecture, workload: Workload, variant: loss.Variant, *, adds: bool
) -> tuple[Operator, ...]:
    """The shared head and the module's loss; the matrix's gradient *adds* to the main loss's by a kernel of its own."""
    operators = keep_once(loss.head(architecture, workload, variant))
    if not adds:
        return operators
    elements = architecture.hidden * ceil(architecture.vocabulary / workload.tp)
    add = pointwise(3.0 * elements * workload.activation_bytes, float(elements))
    return tuple(replace(op, backward_weight=(*op.backward_weight, add)) if op.weights else op for op in operators)


def _join(hidden: int, workload: Workload, *, keeps_hidden: bool) -> Iterator[Operator]:
    """Both norms, the concatenation and the projection; the first norm's result waits for the second's."""
    lane, weights = own_lane(workload), ("eh_proj.weight",)
    one, shape = lane.tensor_bytes(hidden), NormShape(hidden)
    # The hidden states go two ways, to a head and on: their gradients are added.
    yield Operator("hidden", (), backward=(pointwise(3 * one, lane.count * hidden),), output_bytes=one)
    first = rms_norm(lane, "hnorm", _HIDDEN, shape, "hnorm.weight")
    kept = first.saved if keeps_hidden else tuple(tensor for tensor in first.saved if tensor.name != _HIDDEN)
    yield replace(first, saved=kept)
    second = rms_norm(lane, "enorm", "prediction_embedding", shape, "enorm.weight")
    yield replace(second, workspace_bytes=second.workspace_bytes + one)
    yield Operator("concatenate", (pointwise(4 * one, kind="cat"),), output_bytes=2 * one)
    yield from enter(workload, 2 * hidden, weights)
    columns = ceil(hidden / workload.tp)
    yield linear(gathered_lane(workload), "eh_proj", "prediction_input", 2 * hidden, columns, weights)
    yield from gather_columns(workload, hidden)


def _prefixed(operator: Operator, prefix: str) -> Operator:
    """*operator* with the names that its weights have within the module."""

    def named(weights: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{prefix}{weight}" for weight in weights)

    forward, backward, beside = (
        tuple(replace(collective, weights=named(collective.weights)) for collective in collectives)
        for collectives in (operator.forward_collectives, operator.backward_collectives, operator.beside_gradients)
    )
    return replace(
        operator,
        weights=named(operator.weights),
        saved=tuple(replace(tensor, weights=named(tensor.weights)) for tensor in operator.saved),
        forward_collectives=forward,
        backward_collectives=backward,
        beside_gradients=beside,
    )

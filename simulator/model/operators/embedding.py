"""The input embedding: a gather of rows; backward, a zero-filled matrix that token gradients are added to."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.communication import leave
from simulator.model.operators.dispatch import sort_positions
from simulator.model.operators.lane import INT64_BYTES, own_lane, pointwise, token_lane

WEIGHT = "model.embed_tokens.weight"
_SORT_LAUNCHES = 10


def embedding(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Rows of the rank's share of the vocabulary for its tokens, and their sum over the tp ranks.

    The last result is the first residual: as many copies of the rows as the model has parallel streams.
    """
    *before, last = _rows(architecture, workload), *leave(workload, architecture.hidden)
    streams = max((layer.hyper_connections for layer in architecture.layers), default=1)
    return *before, replace(last, output_bytes=streams * own_lane(workload).tensor_bytes(architecture.hidden))


def _rows(architecture: Architecture, workload: Workload) -> Operator:
    """The gradient sorts the token ids and adds rows in their order. Tokens of other ranks' shares yield zeroes."""
    lane = token_lane(workload)
    held = ceil(architecture.vocabulary / workload.tp) * architecture.hidden
    rows, ids = lane.tensor_bytes(architecture.hidden), lane.count * INT64_BYTES
    return Operator(
        "embedding",
        forward=(
            pointwise(2 * rows + ids, kind="gather"),
            *((pointwise(rows, kind="masked_fill"),) if workload.tp > 1 else ()),
        ),
        backward_weight=(
            pointwise(lane.element_bytes * held, kind="fill"),
            sort_positions(lane.count, _SORT_LAUNCHES),
            pointwise(3 * rows, lane.count * architecture.hidden, kind="scatter"),
            *((pointwise(3.0 * lane.element_bytes * held),) if architecture.tied_embeddings else ()),
        ),
        weights=(WEIGHT,),
        output_bytes=rows,
    )

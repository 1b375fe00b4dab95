"""The input embedding: a gather of rows; backward, a zero-filled matrix that token gradients are added to.

Learnt positions are a second table, whose rows are added to the first one's. Where sequence parallelism splits tokens,
Megatron-LM adds them before it does; here each rank adds those of its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from simulator.model.architecture import Architecture
from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.communication import leave
from simulator.model.operators.dispatch import sort_positions
from simulator.model.operators.lane import INT64_BYTES, Lane, own_lane, pointwise, token_lane

WEIGHT = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"
_SORT_LAUNCHES = 10


def embedding(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Rows of the rank's share of the vocabulary for its tokens, their sum over the tp ranks, positions, dropout.

    The last result is the first residual: as many copies of the rows as the model has parallel streams.
    """
    hidden, lane = architecture.hidden, own_lane(workload)
    *before, last = (
        _rows(architecture, workload),
        *leave(workload, hidden),
        *_positions(architecture, lane),
        *_dropout(lane, hidden, workload),
    )
    streams = max((layer.hyper_connections for layer in architecture.layers), default=1)
    return *before, replace(last, output_bytes=streams * lane.tensor_bytes(hidden))


def _rows(architecture: Architecture, workload: Workload) -> Operator:
    """Tokens of other ranks' shares yield zeroes.

    The gradient of a table that is the head's matrix too is a third tensor beside both (PyTorch's `input_buffer.cpp`);
    DTensor makes that of all ranks' rows, and adds the rank's to those of the head.
    """
    lane = token_lane(workload)
    held = ceil(architecture.vocabulary / workload.tp) * architecture.hidden
    made = held if workload.execution == "fused" else held * workload.tp
    rows, ids = lane.tensor_bytes(architecture.hidden), lane.count * INT64_BYTES
    return Operator(
        "embedding",
        forward=(
            pointwise(2 * rows + ids, kind="gather"),
            *((pointwise(rows, kind="masked_fill"),) if workload.tp > 1 else ()),
        ),
        backward_weight=(
            *_table_gradient(lane, architecture.hidden, held),
            *((pointwise(3.0 * lane.element_bytes * held),) if architecture.tied_embeddings else ()),
        ),
        weights=(WEIGHT,),
        output_bytes=rows,
        backward_workspace_bytes=lane.element_bytes * made if architecture.tied_embeddings else 0.0,
    )


def _positions(architecture: Architecture, lane: Lane) -> Iterator[Operator]:
    """Rows of the table of positions, and their addition to those of the tokens, whose gradient both tables take."""
    if not architecture.learnt_positions:
        return
    hidden = architecture.hidden
    rows, ids = lane.tensor_bytes(hidden), lane.count * INT64_BYTES
    yield Operator(
        "positions",
        forward=(pointwise(2 * rows + ids, kind="gather"), pointwise(3 * rows, lane.count * hidden)),
        backward_weight=_table_gradient(lane, hidden, architecture.learnt_positions * hidden),
        weights=(POSITIONS,),
        output_bytes=rows,
        workspace_bytes=rows,
    )


def _table_gradient(lane: Lane, hidden: int, held: int) -> tuple[Kernel, ...]:
    """The gradient of *held* elements sorts the ids and adds rows in their order."""
    rows = lane.tensor_bytes(hidden)
    return (
        pointwise(lane.element_bytes * held, kind="fill"),
        sort_positions(lane.count, _SORT_LAUNCHES),
        pointwise(3 * rows, lane.count * hidden, kind="scatter"),
    )


def _dropout(lane: Lane, hidden: int, workload: Workload) -> Iterator[Operator]:
    """One kernel each way; a mask of a byte an element is kept."""
    if not workload.dropout:
        return
    one, mask = lane.tensor_bytes(hidden), float(lane.count * hidden)
    kernel = pointwise(2 * one + mask, lane.count * hidden)
    yield Operator(
        "embedding_dropout", (kernel,), (kernel,), saved=(Saved("embedding.dropout", mask),), output_bytes=one
    )

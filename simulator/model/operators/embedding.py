"""The input embedding: a gather of rows; backward, a zero-filled matrix that token gradients are added to."""

from __future__ import annotations

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.lane import INT64_BYTES, Lane, pointwise, token_lane

WEIGHT = "model.embed_tokens.weight"


def embedding(architecture: Architecture, workload: Workload) -> Operator:
    """Rows of the embedding for the rank's tokens. The gradient sorts the token ids and adds rows in their order."""
    lane = token_lane(workload)
    rows, ids = lane.tensor_bytes(architecture.hidden), lane.count * INT64_BYTES
    return Operator(
        "embedding",
        forward=(pointwise(2 * rows + ids, kind="gather"),),
        backward_weight=(
            pointwise(lane.element_bytes * architecture.vocabulary * architecture.hidden, kind="copy"),
            pointwise(8 * ids, kind="scatter", launches=4),
            pointwise(3 * rows, lane.count * architecture.hidden, kind="scatter"),
        ),
        weights=(WEIGHT,),
        output_bytes=_output_bytes(architecture, lane),
    )


def _output_bytes(architecture: Architecture, lane: Lane) -> float:
    """The first residual: as many copies of the rows as the model has parallel streams."""
    streams = max((layer.hyper_connections for layer in architecture.layers), default=1)
    return streams * lane.tensor_bytes(architecture.hidden)

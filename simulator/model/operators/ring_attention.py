"""Ring attention: ranks attend to the keys and values that they have while the next ones are on their way.

As Transformer Engine does it (`cp_comm_type` p2p; Liu et al., "Ring Attention", 2023): a rank holds n = L / cp tokens
of each sequence, one piece from the front and its mirror image from the back. In the first of cp steps it attends
causally to its own keys, n (n + 1) / 2 pairs; in every other one either all its queries see the front half of another
rank's keys or its back half of queries sees all of them, n^2 / 2 pairs each. Keys and values hop to the next rank
beside each step but the last. Partial outputs are kept until all steps are through, and weighted by their log-sum-exps
then, one kernel each that reads and writes the sum; counts are those of the last rank, whose queries are all used in
every step.

Backward keys and values go round once more, with their gradients from the second step on; the last hop brings the
gradients home. Each step's gradients are added to those of q and of the travelling keys and values. A step is priced as
causal attention over n tokens, whatever part of the pairs it leaves out.
"""

from __future__ import annotations

from simulator.model.operator import Collective, Kernel, Operator, Saved, Workload
from simulator.model.operators.attention_core import (
    ATTENTION_OUTPUT,
    ATTENTION_STATISTICS,
    AttentionShape,
    core_kind,
)
from simulator.model.operators.lane import FP32_BYTES, Lane, pointwise, token_lane

_LAUNCHES_AROUND = 4
"""Kernels around the main one of a flash attention's backward pass; their time is in its curve."""


def rides_ring(workload: Workload) -> bool:
    """Whether the ranks of *workload* pass keys and values around."""
    return workload.cp > 1 and workload.context == "ring"


def ring_attention(workload: Workload, shape: AttentionShape) -> Operator:
    """Causal attention of *shape* over whole sequences, each rank with its own tokens' keys and values."""
    lane, steps = token_lane(workload), workload.cp
    q, kv = lane.tensor_bytes(shape.query), lane.tensor_bytes(shape.key + shape.value)
    out, statistics = lane.tensor_bytes(shape.output), _statistics_bytes(lane, shape)
    hop = Collective("send", "cp", kv)
    return Operator(
        "ring_attention",
        forward=(*_steps(workload, shape), *_corrections(steps, kv, out, statistics)),
        backward=(*_steps(workload, shape, backward=True), *_sums(steps, q, kv, core_kind(workload))),
        saved=(
            lane.saved("query", shape.query),
            lane.saved("key", shape.key),
            lane.saved("value", shape.value),
            lane.saved(ATTENTION_OUTPUT, shape.output),
            Saved(ATTENTION_STATISTICS, statistics),
        ),
        modules=("core_attn",),
        makes=ATTENTION_OUTPUT,
        output_bytes=out,
        # Every received pair of keys and values and every partial output stays until the last step is through.
        workspace_bytes=(steps - 1) * kv + steps * (out + statistics),
        # Two buffers of keys, values and their gradients, and the gradients of one step.
        backward_workspace_bytes=4 * kv + q + 2 * kv,
        forward_beside=(hop,) * (steps - 1),
        backward_beside=(hop, *(Collective("send", "cp", 2 * kv),) * (steps - 2), hop),
    )


def _statistics_bytes(lane: Lane, shape: AttentionShape) -> float:
    return float(lane.count * shape.heads * FP32_BYTES)


def _steps(workload: Workload, shape: AttentionShape, *, backward: bool = False) -> tuple[Kernel, ...]:
    """The attention kernel of every step; backward in reverse, so that the causal one comes last."""
    lane, own = token_lane(workload), [length // workload.cp for length in workload.sequence_lengths]
    dims = 3 * shape.qk_dim + 2 * shape.v_dim if backward else shape.qk_dim + shape.v_dim
    queries, half = lane.tensor_bytes(shape.query), lane.tensor_bytes(shape.key + shape.value) / 2
    output, statistics = lane.tensor_bytes(shape.output), _statistics_bytes(lane, shape)

    def kernel(pairs: float, keys: float) -> Kernel:
        moved = queries + keys + output + statistics
        if backward:
            moved += queries + keys + statistics + lane.count * shape.query * FP32_BYTES
        return Kernel(
            core_kind(workload),
            2.0 * shape.heads * dims * pairs,
            moved,
            (shape.heads, shape.qk_dim, max(own)),
            lane.dtype,
        )

    first = kernel(sum(n * (n + 1) / 2 for n in own), 2 * half)
    others = (kernel(sum(n * n / 2 for n in own), half),) * (workload.cp - 1)
    return (*others, first) if backward else (first, *others)


def _corrections(steps: int, kv: float, out: float, statistics: float) -> tuple[Kernel, ...]:
    """Keys and values joined for the way; log-sum-exps joined step by step; outputs weighted and added."""
    return (
        pointwise(2 * kv, kind="cat"),
        pointwise(2 * statistics, kind="copy"),
        pointwise((steps - 1) * 3 * statistics, launches=steps - 1),
        pointwise(2 * out + 2 * statistics),
        pointwise((steps - 1) * (3 * out + 2 * statistics), launches=steps - 1),
    )


def _sums(steps: int, q: float, kv: float, kind: str) -> tuple[Kernel, ...]:
    """Keys and values into the travelling buffer; each step's gradients joined, and added but for the first ones."""
    return (
        pointwise(2 * kv, kind="copy"),
        pointwise(steps * 2 * kv, kind="cat", launches=steps),
        pointwise(2 * (q + kv), kind="copy", launches=2),
        pointwise((steps - 1) * 3 * (q + kv), launches=2 * (steps - 1)),
        Kernel(kind, 0.0, 0.0, launches=_LAUNCHES_AROUND * steps),
    )

"""The lightning indexer of sparse attention: projections, fp8 scores of every query-key pair, the best keys' choice.

Scores cost 2 h d FLOPs a pair on the tensor cores and 2 h for the weighted sum over heads; fp32 scores are written for
a block of queries at a time and read by the choice (models_and_formulas section 3.7). The language-model loss sends no
gradient through the choice, so there is no backward pass; a separate loss that trains the indexer is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.architecture import Indexer
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.communication import enter, gather_context
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, Lane, own_lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, layer_norm
from simulator.model.operators.rotary import rotary

_QUERY_BLOCK = 1024
"""Queries whose scores exist at once, so that a million tokens need 4 GB of them and not 4 TB."""
_INDEX_BYTES = 4


def index_operators(indexer: Indexer, workload: Workload, hidden: int, query: tuple[str, int]) -> Iterator[Operator]:
    """The indexer over all causal pairs; *query*: name and width of the tensor that its queries are made of.

    Every tp rank scores with all heads, since the choice is the same for all of them.
    """
    lane = token_lane(workload)
    yield from _projections(indexer, workload, hidden, query)
    yield index_quantise(indexer, lane)
    yield from map(forward_only, gather_context(workload, indexer.head_dim))
    yield index_scores(indexer, workload, lane, workload.causal_pairs)
    yield index_choice(indexer, lane, workload.causal_pairs)


def _projections(indexer: Indexer, workload: Workload, hidden: int, query: tuple[str, int]) -> Iterator[Operator]:
    """Keys and weights of heads are made of the rank's own tokens and then gathered."""
    source, width = query
    lane, own = token_lane(workload), own_lane(workload)
    prefix, inner = "self_attn.indexer", indexer.heads * indexer.head_dim
    yield linear(lane, "index_wq_b", source, width, inner, (f"{prefix}.wq_b.weight",), backward=False)
    yield linear(own, "index_wk", MIXER_INPUT, hidden, indexer.head_dim, (f"{prefix}.wk.weight",), backward=False)
    shape = NormShape(indexer.head_dim)
    yield forward_only(layer_norm(own, "index_k_norm", "index_key", shape, f"{prefix}.k_norm.weight"))
    weights = (f"{prefix}.weights_proj.weight",)
    yield linear(own, "index_weights", MIXER_INPUT, hidden, indexer.heads, weights, backward=False)
    yield from map(forward_only, enter(workload, indexer.head_dim + indexer.heads))
    if indexer.rope:
        yield forward_only(rotary(lane, inner, indexer.head_dim))


def index_quantise(indexer: Indexer, lane: Lane) -> Operator:
    """Queries and keys to fp8 with one fp32 scale a vector."""
    vectors = lane.count * (indexer.heads + 1)
    moved = vectors * (indexer.head_dim * (lane.element_bytes + 1) + FP32_BYTES)
    return Operator("index_quantise", (pointwise(moved, 2.0 * vectors * indexer.head_dim),))


def index_scores(indexer: Indexer, workload: Workload, lane: Lane, pairs: float) -> Operator:
    """Scores of *pairs* query-key pairs, summed over heads."""
    inner = indexer.heads * indexer.head_dim
    per_token = inner + indexer.head_dim + FP32_BYTES + FP32_BYTES * indexer.heads
    length = max(workload.sequence_lengths)
    kernel = Kernel(
        "indexer",
        2.0 * (inner + indexer.heads) * pairs,
        lane.count * per_token + FP32_BYTES * pairs,
        (indexer.heads, indexer.head_dim, length),
        "fp8",
    )
    workspace = FP32_BYTES * min(lane.count, _QUERY_BLOCK) * length
    return Operator("index_scores", (kernel,), workspace_bytes=workspace)


def index_choice(indexer: Indexer, lane: Lane, pairs: float) -> Operator:
    """Reads every score, writes the positions of the best *top_k* for each query."""
    chosen = lane.count * indexer.top_k * _INDEX_BYTES
    kernel = Kernel("topk", 0.0, FP32_BYTES * pairs + chosen, (indexer.top_k,))
    return Operator("index_topk", (kernel,), output_bytes=chosen)


def forward_only(operator: Operator) -> Operator:
    """*operator* without gradients and without what they would keep."""
    return replace(
        operator, backward=(), backward_weight=(), saved=(), backward_workspace_bytes=0.0, backward_collectives=()
    )

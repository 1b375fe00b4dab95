"""The lightning indexer of sparse attention: projections, fp8 scores of every query-key pair, the best keys' choice.

Scores cost 2 h d FLOPs a pair on the tensor cores and 2 h for the weighted sum over heads (models_and_formulas section
3.7). Fused, one kernel chooses keys as it scores them (`kernels/indexer.py`); partly fused, fp32 scores are written for
a block of queries at a time and read by the choice; by small operators, in bf16 and of all pairs whether a query sees
them or not, every head's product is written too (`kernels/reference/indexer.py`). The language-model loss sends no
gradient through the choice, so there is no backward pass; a separate loss that trains the indexer is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

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
    if workload.core == "small_operators":
        yield from map(forward_only, gather_context(workload, indexer.head_dim))
        yield _small_operators(indexer, workload, lane)
        return
    yield index_quantise(indexer, lane)
    yield from map(forward_only, gather_context(workload, indexer.head_dim))
    if workload.core == "fused":
        yield _choosing_scores(indexer, workload, lane)
        return
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


def _choosing_scores(indexer: Indexer, workload: Workload, lane: Lane) -> Operator:
    """Scores of all causal pairs, never stored, and the choice among them, in one kernel."""
    scores = index_scores(indexer, workload, lane, workload.causal_pairs).forward[0]
    chosen = _chosen_bytes(indexer, lane)
    moved = scores.bytes - FP32_BYTES * workload.causal_pairs + chosen
    return Operator("index_topk", (replace(scores, kind="indexer_choice", bytes=moved),), output_bytes=chosen)


def _small_operators(indexer: Indexer, workload: Workload, lane: Lane) -> Operator:
    """For each block of queries and sequence: products of all heads, their positive part, weighed sum, mask, choice."""
    length, h, b = max(workload.sequence_lengths), indexer.heads, lane.element_bytes
    blocks = ceil(lane.count / _QUERY_BLOCK)
    block_pairs = min(lane.count, _QUERY_BLOCK) * length
    rows = lane.count * h
    product = Kernel(
        "gemm",
        2.0 * rows * length * indexer.head_dim,
        b * (rows * (indexer.head_dim + length) + blocks * length * indexer.head_dim),
        (rows // blocks, length, indexer.head_dim),
        lane.dtype,
        launches=blocks,
    )
    pairs = float(blocks) * block_pairs
    steps = (
        ("elementwise", 2 * b * h, 1),
        ("cast_up", (b + FP32_BYTES) * h, 1),
        ("reduction", FP32_BYTES * (h + 1), 1),
        ("elementwise", 2 * FP32_BYTES + 2, 4),
        ("topk", FP32_BYTES, 1),
    )
    kernels = tuple(Kernel(k, 0.0, moved * pairs, dtype="fp32", launches=n * blocks) for k, moved, n in steps)
    workspace = block_pairs * h * (b + FP32_BYTES)
    return Operator(
        "index_topk", (product, *kernels), output_bytes=_chosen_bytes(indexer, lane), workspace_bytes=workspace
    )


def _chosen_bytes(indexer: Indexer, lane: Lane) -> float:
    return float(lane.count * indexer.top_k * _INDEX_BYTES)


def index_choice(indexer: Indexer, lane: Lane, pairs: float) -> Operator:
    """Reads every score, writes the positions of the best *top_k* for each query."""
    chosen = _chosen_bytes(indexer, lane)
    kernel = Kernel("topk", 0.0, FP32_BYTES * pairs + chosen, (indexer.top_k,))
    return Operator("index_topk", (kernel,), output_bytes=chosen)


def forward_only(operator: Operator) -> Operator:
    """*operator* without gradients and without what they would keep."""
    return replace(
        operator, backward=(), backward_weight=(), saved=(), backward_workspace_bytes=0.0, backward_collectives=()
    )

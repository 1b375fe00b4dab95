"""Sparse attention over latents: each query reads its *top_k* chosen keys, shared by all heads.

Fused: `kernels/sparse_attention_hopper.py`, one kernel, and its backward pass, which takes queries in batches whose two
weights of keys fit in 1 GiB; its few kernels were timed as one. Partly fused: the published FlashMLA,
which pads heads to blocks of 64 and has no backward pass, so that the same one follows. Small operators: every query's
keys gathered to memory, as `kernels/reference/sparse_attention.py` writes it.

Forward 2 k H (d_k + d_v) FLOPs a token, always for the full *top_k* (measured time does not fall where fewer keys are
valid); backward five products, 2 k H (3 d_k + 2 d_v). Bytes take the gathered latents once, as the L2 cache nearly
does; gradients of the latents are summed in fp32 by atomics (models_and_formulas section 3.7).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.attention_core import ATTENTION_STATISTICS
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, pointwise

LATENT_OUTPUT = "latent_output"
"""Name of the saved tensor that the core returns."""
_INDEX_BYTES = 4
_BATCH_BYTES = 2**30
_PART = 32


@dataclass(frozen=True, slots=True)
class SparseShape:
    """Heads, the width of one shared key and of its value part, keys per query."""

    heads: int
    key_dim: int
    value_dim: int
    top_k: int


def sparse_attention(lane: Lane, workload: Workload, shape: SparseShape, *, keeps_choice: bool = True) -> Operator:
    """The sparse core; *keeps_choice* False: the chosen positions belong to an earlier layer, which keeps them."""
    if workload.core == "small_operators":
        return _small_operators(lane, shape, keeps_choice=keeps_choice)
    tokens, heads, width = lane.count, shape.heads, shape.key_dim
    per_head = float(tokens) * shape.top_k * heads * 2
    output, statistics = lane.tensor_bytes(heads * shape.value_dim), tokens * heads * FP32_BYTES
    query, choice, sums = lane.tensor_bytes(heads * width), _choice(lane, shape), tokens * width * FP32_BYTES
    dims = (heads, width, max(workload.sequence_lengths))
    read = query + lane.tensor_bytes(width) + choice
    forward = Kernel(
        "sparse_attention" if workload.core == "fused" else "flash_mla",
        per_head * (width + shape.value_dim),
        read + output + statistics,
        dims,
        lane.dtype,
    )
    backward_flops = per_head * (3 * width + 2 * shape.value_dim)
    backward_bytes = read + query + output + 2 * statistics + 2 * sums
    return Operator(
        "sparse_attention",
        forward=(forward,),
        backward=(
            pointwise(2 * output + statistics, 2.0 * tokens * heads * shape.value_dim, kind="reduction"),
            pointwise(sums, kind="fill"),
            Kernel("sparse_attention", backward_flops, backward_bytes, dims, lane.dtype),
            pointwise(sums + lane.tensor_bytes(width), kind="cast_down"),
        ),
        saved=(*_saved(lane, shape, keeps_choice=keeps_choice), Saved(ATTENTION_STATISTICS, statistics)),
        makes=LATENT_OUTPUT,
        output_bytes=output,
        backward_workspace_bytes=sums + _weights(lane, shape),
    )


def _weights(lane: Lane, shape: SparseShape) -> float:
    """Bytes of a batch's weights of keys: their probabilities and the gradients of their scores.

    Heads are padded to 32; batches are the fewest that fit, and alike (`kernels/sparse_tiles.py`).
    """
    width = -(-shape.heads // _PART) * _PART
    a_query = 2 * shape.top_k * width * lane.element_bytes
    batches = max(1, ceil(lane.count * a_query / _BATCH_BYTES))
    return lane.count / batches * a_query


def _choice(lane: Lane, shape: SparseShape) -> float:
    """Bytes of the positions chosen."""
    return float(lane.count * shape.top_k * _INDEX_BYTES)


def _saved(lane: Lane, shape: SparseShape, *, keeps_choice: bool) -> tuple[Saved, ...]:
    kept = (
        lane.saved("query", shape.heads * shape.key_dim),
        lane.saved("key_latent_joined", shape.key_dim),
        lane.saved(LATENT_OUTPUT, shape.heads * shape.value_dim),
    )
    return (*kept, Saved("chosen_keys", _choice(lane, shape))) if keeps_choice else kept


def _small_operators(lane: Lane, shape: SparseShape, *, keeps_choice: bool) -> Operator:
    """Keys gathered, scores, softmax and sum; each kernel was seen in a profile of both passes on an H200.

    Autograd keeps the gathered keys, the mask's result and the softmax in fp32 and in the lane's format. Backward, the
    gradient of the keys' value part is written into zeros as wide as the keys before the two gradients are added.
    """
    b, tokens, k = lane.element_bytes, lane.count, shape.top_k
    gathered, values = float(b * tokens * k * shape.key_dim), float(b * tokens * k * shape.value_dim)
    scores = float(tokens) * k * shape.heads
    by_key, by_value = (_products(lane, shape, dim) for dim in (shape.key_dim, shape.value_dim))
    masked = (Step("copy", 2 * FP32_BYTES), Step("broadcast", 2 * FP32_BYTES, "fp32"))
    scaled = Step("elementwise", 2 * FP32_BYTES, "fp32")
    forward = (
        pointwise(2 * gathered, kind="gather"),
        by_key,
        *chain(scores, Step("cast_up", b + FP32_BYTES), scaled, *masked),
        *chain(scores, Step("softmax", 2 * FP32_BYTES, "fp32"), Step("cast_down", b + FP32_BYTES)),
        by_value,
    )
    backward = (
        by_value,
        by_value,
        *chain(scores, Step("cast_up", b + FP32_BYTES), Step("softmax", 3 * FP32_BYTES, "fp32"), *masked, scaled),
        *chain(scores, Step("cast_down", b + FP32_BYTES)),
        by_key,
        by_key,
        pointwise(gathered, kind="fill"),
        pointwise(2 * values, kind="transpose"),
        pointwise(3 * gathered, kind="broadcast"),
        pointwise(gathered + 2 * lane.tensor_bytes(shape.key_dim), kind="scatter"),
    )
    kept = (Saved("gathered_keys", gathered), Saved("scores", (2 * FP32_BYTES + b) * scores))
    return Operator(
        "sparse_attention",
        forward=forward,
        backward=backward,
        saved=(*_saved(lane, shape, keeps_choice=keeps_choice), *kept),
        makes=LATENT_OUTPUT,
        output_bytes=lane.tensor_bytes(shape.heads * shape.value_dim),
        workspace_bytes=FP32_BYTES * scores,
        backward_workspace_bytes=2 * gathered + 2 * FP32_BYTES * scores,
    )


def _products(lane: Lane, shape: SparseShape, dim: int) -> Kernel:
    """A product between every query's scores and *dim* channels of its own keys: priced as one of all rows."""
    rows = lane.count * shape.heads
    moved = lane.element_bytes * (lane.count * shape.top_k * dim + rows * (shape.top_k + dim))
    return Kernel("gemm", 2.0 * rows * shape.top_k * dim, moved, (rows, shape.top_k, dim), lane.dtype)

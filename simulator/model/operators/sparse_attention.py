"""Sparse attention over latents: each query reads its *top_k* chosen keys, shared by all heads.

Forward 2 k H (d_k + d_v) FLOPs a token, always for the full *top_k* (measured time does not fall where fewer keys are
valid); backward five products, 2 k H (3 d_k + 2 d_v). Bytes take the gathered latents once, as the L2 cache nearly
does; gradients of the latents are summed in fp32 by atomics (models_and_formulas section 3.7).
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators.lane import FP32_BYTES, Lane, pointwise

_INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class SparseShape:
    """Heads, the width of one shared key and of its value part, keys per query."""

    heads: int
    key_dim: int
    value_dim: int
    top_k: int


def sparse_attention(lane: Lane, workload: Workload, shape: SparseShape, *, keeps_choice: bool = True) -> Operator:
    """The sparse core; *keeps_choice* False: the chosen positions belong to an earlier layer, which keeps them."""
    tokens, heads, width = lane.count, shape.heads, shape.key_dim
    per_head = float(tokens) * shape.top_k * heads * 2
    query, keys, output = (lane.tensor_bytes(n) for n in (heads * width, width, heads * shape.value_dim))
    choice, statistics = tokens * shape.top_k * _INDEX_BYTES, tokens * heads * FP32_BYTES
    sums = tokens * width * FP32_BYTES
    dims = (heads, width, max(workload.sequence_lengths))
    read = query + keys + choice
    forward = Kernel(
        "sparse_attention", per_head * (width + shape.value_dim), read + output + statistics, dims, lane.dtype
    )
    backward_flops = per_head * (3 * width + 2 * shape.value_dim)
    backward_bytes = read + query + output + 2 * statistics + 2 * sums
    saved = (
        lane.saved("query", heads * width),
        lane.saved("key_latent_joined", width),
        lane.saved("latent_output", heads * shape.value_dim),
        Saved("attention_statistics", statistics),
    )
    return Operator(
        "sparse_attention",
        forward=(forward,),
        backward=(
            pointwise(2 * output + statistics, 2.0 * tokens * heads * shape.value_dim, kind="reduction"),
            pointwise(sums, kind="fill"),
            Kernel("sparse_attention", backward_flops, backward_bytes, dims, lane.dtype),
            pointwise(sums + keys, kind="cast_down"),
        ),
        saved=saved + ((Saved("chosen_keys", choice),) if keeps_choice else ()),
        output_bytes=output,
        backward_workspace_bytes=sums,
    )

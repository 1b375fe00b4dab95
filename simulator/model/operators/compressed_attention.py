"""Attention over a sliding window and compressed keys (DeepSeek-V4): one key-value head, grouped low-rank output.

Each query sees its window and one compressed key for every *compress_ratio* tokens before it, or the indexer's best
*top_k* of those. A key is its own value, so the rotation of its last dims is undone on the output. FLOPs of the core
as in `attention_core` with d_qk = d_v = head_dim.

Tensor-parallel ranks split heads and output groups; each makes latents and keys of its own tokens, which are gathered.
Context-parallel ranks exchange their windows' edges and the compressed keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import CompressedAttention, Indexer
from simulator.model.operator import Context, Operator, Workload
from simulator.model.operators.attention_core import (
    ATTENTION_OUTPUT,
    AttentionShape,
    flash_attention,
    window_pairs,
)
from simulator.model.operators.communication import enter, gather_context, hand_over_edge, leave
from simulator.model.operators.compressor import compressed_pairs, compressor
from simulator.model.operators.gemm import batched_linear, linear
from simulator.model.operators.indexer import forward_only, index_choice, index_quantise, index_scores
from simulator.model.operators.lane import MIXER_INPUT, gathered_lane, own_lane, token_lane
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.rotary import rotary
from simulator.model.split import Split

SPLITS = (Split("heads", "the heads"), Split("output_groups", "the output groups"))


def operators(component: CompressedAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    return (
        *_projections(component, hidden, workload),
        *_compressed(component, hidden, workload),
        *hand_over_edge(workload, component.window, component.head_dim),
        _core(component, workload),
        *_output(component, hidden, workload),
    )


def contexts(component: CompressedAttention) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of it."""
    del component
    return ("all_gather",)


def _projections(component: CompressedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    heads, d, rank = component.heads, component.head_dim, component.q_lora_rank
    own, expand = own_lane(workload), ("self_attn.q_b_proj.weight",)
    yield linear(own, "q_a_proj", MIXER_INPUT, hidden, rank, ("self_attn.q_a_proj.weight",))
    yield rms_norm(own, "q_a_norm", "query_latent", NormShape(rank), "self_attn.q_a_norm.weight")
    yield from enter(workload, rank, expand)
    yield linear(gathered_lane(workload), "q_b_proj", "query_latent_normed", rank, heads * d, expand)
    weights = ("self_attn.kv_proj.weight",)
    yield linear(own, "kv_proj", MIXER_INPUT, hidden, d, weights, shares_input=True)
    yield rms_norm(own, "kv_norm", "key_projection", NormShape(d), "self_attn.kv_norm.weight")
    yield from enter(workload, d)
    yield rotary(token_lane(workload), heads * component.rope_dim, component.rope_dim, whole=False)


def _compressed(component: CompressedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Compressed keys, and the choice among them where there is an indexer."""
    ratio = component.compress_ratio
    if not ratio:
        return
    yield from _keys("compressor", hidden, component.head_dim, ratio, "self_attn.compressor", workload)
    if component.indexer is not None:
        yield from _index(component.indexer, component, hidden, workload)


def _keys(name: str, hidden: int, width: int, ratio: int, prefix: str, workload: Workload) -> Iterator[Operator]:
    """Compressed keys *width* wide of the whole sequences."""
    yield from compressor(own_lane(workload), name, hidden, width, ratio, prefix)
    yield from enter(workload, width / ratio)
    yield from gather_context(workload, width, ratio)


def _index(indexer: Indexer, component: CompressedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """The lightning indexer over compressed keys of its own; every tp rank scores with all heads."""
    prefix, rank, ratio = "self_attn.indexer", component.q_lora_rank, component.compress_ratio
    lane, inner = token_lane(workload), indexer.heads * indexer.head_dim
    keys = _keys("index_compressor", hidden, indexer.head_dim, ratio, f"{prefix}.compressor", workload)
    yield from map(forward_only, keys)
    weights = (f"{prefix}.q_b_proj.weight",)
    yield linear(lane, "index_q_b", "query_latent_normed", rank, inner, weights, backward=False)
    weights = (f"{prefix}.weights_proj.weight",)
    yield linear(own_lane(workload), "index_weights", MIXER_INPUT, hidden, indexer.heads, weights, backward=False)
    yield from map(forward_only, enter(workload, indexer.heads))
    yield forward_only(rotary(lane, inner))
    yield index_quantise(indexer, lane)
    pairs = compressed_pairs(workload.sequence_lengths, ratio) / workload.cp
    yield index_scores(indexer, workload, lane, pairs)
    yield index_choice(indexer, lane, pairs)


def _core(component: CompressedAttention, workload: Workload) -> Operator:
    lane, lengths, ratio = token_lane(workload), workload.sequence_lengths, component.compress_ratio
    pairs = window_pairs(lengths, component.window)
    if ratio:
        pairs += compressed_pairs(lengths, ratio, component.indexer.top_k if component.indexer is not None else None)
    shape = AttentionShape(component.heads, 1, component.head_dim, component.head_dim)
    return flash_attention(lane, workload, shape, pairs / workload.cp, value_saved=0, sinks=("self_attn.sinks",))


def _output(component: CompressedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Rotation undone; one low-rank matrix a group of heads; the joined ranks back to the model's width."""
    lane, groups, rank = token_lane(workload), component.output_groups, component.output_rank
    yield rotary(lane, component.heads * component.rope_dim, whole=False)
    width, weights = component.heads * component.head_dim // groups, ("self_attn.o_a_proj.weight",)
    yield batched_linear(lane, "o_a_proj", ATTENTION_OUTPUT, groups, width, rank, weights)
    yield linear(lane, "o_b_proj", "output_latent", groups * rank, hidden, ("self_attn.o_b_proj.weight",))
    yield from leave(workload, hidden)

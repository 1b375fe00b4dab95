"""Multi-head latent attention: decompressed with dense causal attention, or absorbed with sparse attention.

Dense training expands the latent to keys and values of every head and runs ordinary attention with d_qk = nope + rope
dims (models_and_formulas section 3.5). With an indexer the core works on the latents themselves: queries are multiplied
by the keys' half of kv_b, the core reads *top_k* latents for each query, and the values' half follows (section 3.7).

Tensor-parallel ranks split the heads; each holds the whole down-projections, runs them on its own tokens and gathers
the latents, as Megatron-Core does. Context-parallel ranks gather latents, expand those of the whole sequences and
expand them again for the backward pass, so that expanded keys and values are not kept; or they expand their own, and
exchange heads or pass keys and values around. Sparse attention is known to gather only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.architecture import LatentAttention
from simulator.model.operator import Context, Operator, Workload, part_of
from simulator.model.operators.attention_core import ATTENTION_OUTPUT, AttentionShape, flash_attention
from simulator.model.operators.communication import enter, gather_context, leave
from simulator.model.operators.gate import sigmoid_gate
from simulator.model.operators.gemm import batched_linear, linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.indexer import index_operators
from simulator.model.operators.lane import MIXER_INPUT, Lane, gathered_lane, own_lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.ring_attention import rides_ring, ring_attention
from simulator.model.operators.rotary import rotary
from simulator.model.operators.sparse_attention import LATENT_OUTPUT, SparseShape, sparse_attention
from simulator.model.split import Split, share

SPLITS = (Split("heads", "the heads"),)
_KV_B = "self_attn.kv_b_proj.weight"
_UP = "mla_up_proj"
"""Megatron-LM's name of what lies between the latents and the core; norms of latents are part of its products."""


def operators(component: LatentAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    core = _dense_core if component.indexer is None else _sparse_core
    return (
        *_queries(component, hidden, workload),
        *_latents(component, hidden, workload),
        *core(component, hidden, workload),
        *_output(component, hidden, workload),
    )


def contexts(component: LatentAttention) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of *component*."""
    return ("all_gather", "all_to_all", "ring") if component.indexer is None else ("all_gather",)


def _queries(component: LatentAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Queries, through their low rank if they have one."""
    gathered, own, rank = gathered_lane(workload), own_lane(workload), component.q_lora_rank
    q_width, made = component.heads * (component.nope_dim + component.rope_dim), "" if component.rope else "query"
    if rank is None:
        weights: tuple[str, ...] = ("self_attn.q_proj.weight",)
        yield from part_of(_UP, enter(workload, hidden, weights))
        yield from part_of(_UP, [linear(gathered, "q_proj", MIXER_INPUT, hidden, q_width, weights, makes=made)])
        return
    yield linear(own, "q_a_proj", MIXER_INPUT, hidden, rank, ("self_attn.q_a_proj.weight",))
    norm = rms_norm(own, "q_a_norm", "query_latent", NormShape(rank), "self_attn.q_a_layernorm.weight")
    weights = ("self_attn.q_b_proj.weight",)
    up = linear(gathered, "q_b_proj", "query_latent_normed", rank, q_width, weights, makes=made)
    yield from part_of(_UP, [norm, *enter(workload, rank, weights), up])


def _latents(component: LatentAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """The latent of keys and values with the rotated part that all heads share: of the whole sequences, if gathered."""
    own, latent, rope = own_lane(workload), component.kv_lora_rank, component.rope_dim
    weights = ("self_attn.kv_a_proj_with_mqa.weight",)
    yield linear(own, "kv_a_proj", MIXER_INPUT, hidden, latent + rope, weights, shares_input=True)
    norm = rms_norm(own, "kv_a_norm", "key_latent", NormShape(latent), "self_attn.kv_a_layernorm.weight")
    yield from part_of(_UP, [norm, *enter(workload, latent, (_KV_B,))])
    yield from enter(workload, rope)
    if component.rope:
        yield from part_of(_UP, [_rotate(component, token_lane(workload))])
    if _gathers(workload):
        yield from gather_context(workload, latent + rope)


def _gathers(workload: Workload) -> bool:
    return workload.cp > 1 and workload.context == "all_gather"


def _dense_core(component: LatentAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    del hidden
    lane, shape, gathers = gathered_lane(workload), _shape(component), _gathers(workload)
    whole = replace(lane, count=lane.count * workload.cp) if gathers else lane
    width = component.heads * (component.nope_dim + component.v_dim)
    expand = linear(whole, "kv_b_proj", "key_latent_normed", component.kv_lora_rank, width, (_KV_B,), makes="value")
    if gathers:
        expand = replace(expand, backward=expand.forward + expand.backward)
    yield from part_of(_UP, [expand, _join_keys(component, whole)])
    if exchanges_heads(workload):
        yield from exchange(workload, shape.query, shape.key, shape.value)
        inner = between_exchanges(workload)
        yield flash_attention(token_lane(inner), inner, _shape(share(component, workload.cp)), inner.causal_pairs)
        yield from exchange(workload, shape.output, back=True)
    elif rides_ring(workload):
        yield ring_attention(workload, shape)
    else:
        yield _attention(component, workload, width)


def _attention(component: LatentAttention, workload: Workload, expanded: int) -> Operator:
    """The core over whole sequences; *expanded* elements a token come out of kv_b."""
    lane, shape, gathers = token_lane(workload), _shape(component), _gathers(workload)
    apart = _rotates_with_keys(component, lane)
    value_saved = 0 if gathers else shape.value if apart else expanded
    return flash_attention(
        lane, workload, shape, workload.causal_pairs, value_saved=value_saved, key_saved=0 if gathers else None
    )


def _shape(component: LatentAttention) -> AttentionShape:
    qk_dim = component.nope_dim + component.rope_dim
    return AttentionShape(component.heads, component.heads, qk_dim, component.v_dim)


def _rotates_with_keys(component: LatentAttention, lane: Lane) -> bool:
    """Whether the kernel that joins keys also rotates their shared part, and writes the values apart.

    Elsewhere the values stay a view of kv_b's whole output.
    """
    return component.rope and lane.execution == "fused"


def _rotate(component: LatentAttention, lane: Lane) -> Operator:
    """The rotation of queries and of the part that all keys share; fused, of queries in place, two by two elements.

    Megatron-core's kernel attains 0.41 and 0.34 of an H200's bandwidth so (128 heads, 4,096 tokens), as strided
    operands do elsewhere.
    """
    queries, shared = component.heads * component.rope_dim, component.rope_dim
    if not _rotates_with_keys(component, lane):
        return rotary(lane, queries, shared, whole=False)
    kernel = pointwise(2 * lane.tensor_bytes(queries), 3.0 * lane.count * queries, kind="broadcast")
    return Operator("rotary", (kernel,), (kernel,), output_bytes=lane.tensor_bytes(queries))


def _join_keys(component: LatentAttention, lane: Lane) -> Operator:
    """Each head's key is its own nope part beside the shared rope part: one copy; backward sums the shared part."""
    nope, key = component.heads * component.nope_dim, component.heads * (component.nope_dim + component.rope_dim)
    moved = lane.tensor_bytes(nope + component.rope_dim + key)
    if _rotates_with_keys(component, lane):
        moved += 2 * lane.tensor_bytes(component.heads * component.v_dim)
    kind = "cat" if lane.eager else "copy"
    return Operator(
        "join_keys",
        (pointwise(moved, kind=kind),),
        (pointwise(moved, kind=kind),),
        output_bytes=lane.tensor_bytes(key),
    )


def _sparse_core(component: LatentAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    lane, indexer = token_lane(workload), component.indexer
    assert indexer is not None
    latent, rope = component.kv_lora_rank, component.rope_dim
    if not indexer.shared:
        rank = component.q_lora_rank
        query = (MIXER_INPUT, hidden) if rank is None else ("query_latent_normed", rank)
        yield from index_operators(indexer, workload, hidden, query)
    yield batched_linear(lane, "absorb_keys", "query_nope", component.heads, component.nope_dim, latent, (_KV_B,))
    shape = SparseShape(component.heads, latent + rope, latent, indexer.top_k)
    yield sparse_attention(lane, workload, shape, keeps_choice=not indexer.shared)
    yield batched_linear(lane, "absorb_values", LATENT_OUTPUT, component.heads, latent, component.v_dim, (_KV_B,))


def _output(component: LatentAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    lane, width = token_lane(workload), component.heads * component.v_dim
    source = EXCHANGED_OUTPUT if exchanges_heads(workload) else ATTENTION_OUTPUT
    if component.output_gate:
        weight = ("self_attn.g_proj.weight",)
        yield from enter(workload, hidden, weight)
        yield linear(gathered_lane(workload), "g_proj", MIXER_INPUT, hidden, width, weight, shares_input=True)
        yield sigmoid_gate(lane, "output_gate", source, "gate_projection", width)
        source = "gated_output"
    yield linear(lane, "o_proj", source, width, hidden, ("self_attn.o_proj.weight",))
    yield from leave(workload, hidden)

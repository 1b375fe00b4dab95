"""Multi-head latent attention: decompressed with dense causal attention, or absorbed with sparse attention.

Dense training expands the latent to keys and values of every head and runs ordinary attention with d_qk = nope + rope
dims (models_and_formulas section 3.5). With an indexer the core works on the latents themselves: queries are multiplied
by the keys' half of kv_b, the core reads *top_k* latents for each query, and the values' half follows (section 3.7).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import LatentAttention
from simulator.model.operator import Operator, Workload
from simulator.model.operators.attention_core import ATTENTION_OUTPUT, AttentionShape, flash_attention
from simulator.model.operators.gate import sigmoid_gate
from simulator.model.operators.gemm import batched_linear, linear
from simulator.model.operators.indexer import index_operators
from simulator.model.operators.lane import MIXER_INPUT, Lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.rotary import rotary
from simulator.model.operators.sparse_attention import SparseShape, sparse_attention

_KV_B = "self_attn.kv_b_proj.weight"


def operators(component: LatentAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    lane = token_lane(workload)
    core = _dense_core if component.indexer is None else _sparse_core
    return (
        *_latents(component, hidden, lane),
        *core(component, hidden, lane, workload),
        *_output(component, hidden, lane),
    )


def _latents(component: LatentAttention, hidden: int, lane: Lane) -> Iterator[Operator]:
    """Queries through their low rank (if any), and the latent of keys and values."""
    q_width = component.heads * (component.nope_dim + component.rope_dim)
    rank = component.q_lora_rank
    if rank is None:
        yield linear(lane, "q_proj", MIXER_INPUT, hidden, q_width, ("self_attn.q_proj.weight",))
    else:
        yield linear(lane, "q_a_proj", MIXER_INPUT, hidden, rank, ("self_attn.q_a_proj.weight",))
        yield rms_norm(lane, "q_a_norm", "query_latent", NormShape(rank), "self_attn.q_a_layernorm.weight")
        yield linear(lane, "q_b_proj", "query_latent_normed", rank, q_width, ("self_attn.q_b_proj.weight",))
    weights, latent = ("self_attn.kv_a_proj_with_mqa.weight",), component.kv_lora_rank
    yield linear(lane, "kv_a_proj", MIXER_INPUT, hidden, latent + component.rope_dim, weights, shares_input=True)
    yield rms_norm(lane, "kv_a_norm", "key_latent", NormShape(latent), "self_attn.kv_a_layernorm.weight")
    if component.rope:
        yield rotary(lane, component.heads * component.rope_dim, component.rope_dim, whole=False)


def _dense_core(component: LatentAttention, hidden: int, lane: Lane, workload: Workload) -> Iterator[Operator]:
    del hidden
    heads, nope, rope, v = component.heads, component.nope_dim, component.rope_dim, component.v_dim
    yield linear(lane, "kv_b_proj", "key_latent_normed", component.kv_lora_rank, heads * (nope + v), (_KV_B,))
    yield _join_keys(component, lane)
    # A kernel that rotates and joins also writes the values apart; elsewhere they stay a view of kv_b's whole output.
    apart = component.rope and lane.execution == "fused"
    shape = AttentionShape(heads, heads, nope + rope, v)
    value_saved = heads * v if apart else heads * (nope + v)
    yield flash_attention(lane, workload, shape, workload.causal_pairs, value_saved=value_saved)


def _join_keys(component: LatentAttention, lane: Lane) -> Operator:
    """Each head's key is its own nope part beside the shared rope part: one copy; backward sums the shared part."""
    nope, key = component.heads * component.nope_dim, component.heads * (component.nope_dim + component.rope_dim)
    moved = lane.tensor_bytes(nope + component.rope_dim + key)
    return Operator(
        "join_keys",
        (pointwise(moved, kind="copy"),),
        (pointwise(moved, kind="copy"),),
        output_bytes=lane.tensor_bytes(key),
    )


def _sparse_core(component: LatentAttention, hidden: int, lane: Lane, workload: Workload) -> Iterator[Operator]:
    indexer = component.indexer
    assert indexer is not None
    latent, rope = component.kv_lora_rank, component.rope_dim
    if not indexer.shared:
        rank = component.q_lora_rank
        query = (MIXER_INPUT, hidden) if rank is None else ("query_latent_normed", rank)
        yield from index_operators(indexer, workload, lane, hidden, query, workload.causal_pairs)
    yield batched_linear(lane, "absorb_keys", "query_nope", component.heads, component.nope_dim, latent, (_KV_B,))
    shape = SparseShape(component.heads, latent + rope, latent, indexer.top_k)
    yield sparse_attention(lane, workload, shape, keeps_choice=not indexer.shared)
    yield batched_linear(lane, "absorb_values", "latent_output", component.heads, latent, component.v_dim, (_KV_B,))


def _output(component: LatentAttention, hidden: int, lane: Lane) -> Iterator[Operator]:
    width, source = component.heads * component.v_dim, ATTENTION_OUTPUT
    if component.output_gate:
        weight = ("self_attn.g_proj.weight",)
        yield linear(lane, "g_proj", MIXER_INPUT, hidden, width, weight, shares_input=True)
        yield sigmoid_gate(lane, "output_gate", source, "gate_projection", width)
        source = "gated_output"
    yield linear(lane, "o_proj", source, width, hidden, ("self_attn.o_proj.weight",))

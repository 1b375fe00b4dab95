"""Softmax attention with grouped key-value heads: projections, norms of q and k, rotation, core, gate, output.

Context-parallel ranks gather keys and values, or trade their tokens for a share of the heads around the core, or pass
keys and values around; windows, chunks and sinks are not known of the last (Transformer Engine refuses them there).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.architecture import GroupedAttention
from simulator.model.operator import Context, Operator, Workload
from simulator.model.operators.attention_core import (
    ATTENTION_OUTPUT,
    AttentionShape,
    chunk_pairs,
    flash_attention,
    window_pairs,
)
from simulator.model.operators.communication import enter, gather_context, leave, reduce_rows
from simulator.model.operators.gate import sigmoid_gate
from simulator.model.operators.gemm import linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.lane import MIXER_INPUT, gathered_lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.ring_attention import rides_ring, ring_attention
from simulator.model.operators.rotary import rotary
from simulator.model.operators.unfused_attention import unfused_attention
from simulator.model.split import Split, share

SPLITS = (Split("heads", "the heads"), Split("kv_heads", "the key-value heads", copied=True))


def operators(component: GroupedAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide; keys and values are read by their groups, not repeated."""
    return (
        *before_core(component, hidden, workload),
        *_core(component, workload),
        *after_core(component, hidden, workload),
    )


def contexts(component: GroupedAttention) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of *component*."""
    return ("all_gather", "all_to_all", "ring") if has_unfused_core(component) else ("all_gather", "all_to_all")


def attention_shape(component: GroupedAttention) -> AttentionShape:
    """Heads and dims of *component*'s core."""
    return AttentionShape(component.heads, component.kv_heads, component.head_dim, component.head_dim)


def before_core(component: GroupedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Projections, norms of q and k, rotation."""
    lane, shape = token_lane(workload), attention_shape(component)
    yield from enter(workload, hidden, tuple(f"self_attn.{name}_proj.weight" for name in "qkv"))
    yield from _projections(component, hidden, workload)
    if component.qk_norm != "none":
        per_head = component.qk_norm == "head"
        for name, source, heads in (
            ("q", "query_projection", component.heads),
            ("k", "key_projection", component.kv_heads),
        ):
            width = NormShape(component.head_dim, heads) if per_head else NormShape(component.head_dim * heads)
            yield rms_norm(lane, f"{name}_norm", source, width, f"self_attn.{name}_norm.weight")
            if not per_head:
                yield from reduce_rows(workload, 1, backward=True)
    rotated = component.head_dim if component.rotary_dim is None else component.rotary_dim
    if rotated:
        widths = (shape.heads * rotated, shape.kv_heads * rotated)
        yield rotary(lane, *widths, whole=rotated == component.head_dim)


def after_core(component: GroupedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Output gate and projection."""
    lane, width = token_lane(workload), component.heads * component.head_dim
    source = EXCHANGED_OUTPUT if exchanges_heads(workload) else ATTENTION_OUTPUT
    if component.output_gate:
        yield sigmoid_gate(lane, "output_gate", source, "gate_projection", width)
        source = "gated_output"
    weight = ("self_attn.o_proj.weight",)
    yield linear(lane, "o_proj", source, width, hidden, weight, bias=component.output_bias)
    yield from leave(workload, hidden)


def _projections(component: GroupedAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """q, k and v: one product in a fused stack, three elsewhere."""
    lane = gathered_lane(workload)
    q_width, kv_width = component.heads * component.head_dim, component.kv_heads * component.head_dim
    widths = {"q": 2 * q_width if component.output_gate else q_width, "k": kv_width, "v": kv_width}
    if lane.execution == "fused":
        weights = tuple(f"self_attn.{name}_proj.weight" for name in widths)
        joined = linear(lane, "qkv_proj", MIXER_INPUT, hidden, sum(widths.values()), weights, bias=component.qkv_bias)
        yield _with_bias_apart(joined) if workload.attention == "unfused" and component.qkv_bias else joined
        return
    for name, width in widths.items():
        weights, shares = (f"self_attn.{name}_proj.weight",), name != "q"
        yield linear(
            lane, f"{name}_proj", MIXER_INPUT, hidden, width, weights,
            bias=component.qkv_bias, shares_input=shares, makes=_saved_as(component, name),
        )  # fmt: skip


def _saved_as(component: GroupedAttention, name: str) -> str:
    """The saved tensor that the projection *name* makes: none where a rotation makes a new one of it."""
    if name == "v":
        return "value"
    whole = {"q": "query", "k": "key"}[name]
    if component.output_gate and name == "q":
        return ""
    if component.qk_norm != "none":
        return f"{whole}_projection"
    return whole if component.rotary_dim == 0 else ""


def _with_bias_apart(product: Operator) -> Operator:
    """A *product* whose bias a kernel of its own adds, as Megatron-LM's own linear layers do."""
    return replace(product, forward=(*product.forward, pointwise(2 * product.output_bytes, kind="broadcast")))


def has_unfused_core(component: GroupedAttention) -> bool:
    """Whether attention over scores in memory is known for *component*: plainly causal, over all tokens before."""
    return not component.sinks and component.window is None and component.chunk is None


def _core(component: GroupedAttention, workload: Workload) -> Iterator[Operator]:
    """Attention over whole sequences, with what context-parallel ranks exchange for it."""
    shape = attention_shape(component)
    if exchanges_heads(workload):
        yield from exchange(workload, shape.query, shape.key, shape.value)
        yield _attention(share(component, workload.cp), between_exchanges(workload))
        yield from exchange(workload, shape.output, back=True)
    elif rides_ring(workload):
        yield ring_attention(workload, shape)
    else:
        yield from gather_context(workload, shape.key + shape.value)
        yield _attention(component, workload)


def _attention(component: GroupedAttention, workload: Workload) -> Operator:
    shape = attention_shape(component)
    if workload.attention == "unfused":
        return unfused_attention(token_lane(workload), workload, shape)
    sinks = ("self_attn.sinks",) if component.sinks else ()
    return flash_attention(token_lane(workload), workload, shape, _pairs(component, workload), sinks=sinks)


def _pairs(component: GroupedAttention, workload: Workload) -> float:
    lengths = workload.sequence_lengths
    if component.window is not None:
        return window_pairs(lengths, component.window) / workload.cp
    if component.chunk is not None:
        return chunk_pairs(lengths, component.chunk) / workload.cp
    return workload.causal_pairs

"""Kimi Delta Attention: projections, short convolutions, the chunked delta rule, gated norm, output.

The delta rule itself runs in one of three ways (`delta_rule`, `delta_rule_small`).

Context-parallel ranks hand the convolution's edge and the state from rank to rank, or trade their tokens for a share of
the heads from the projections to the gated norm, as Megatron-Core does around its gated delta net.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import KimiDeltaAttention
from simulator.model.operator import Context, Operator, Workload
from simulator.model.operators.communication import enter, hand_over_edge, hand_over_state, leave
from simulator.model.operators.delta_rule import Heads, chain, fused
from simulator.model.operators.delta_rule_small import small_operators
from simulator.model.operators.gated_norm import GATED_NORM_INPUT, GATED_NORM_OUTPUT, gated_norm
from simulator.model.operators.gemm import linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, gathered_lane, pointwise, token_lane
from simulator.model.operators.short_convolution import short_convolution
from simulator.model.split import Split, share

SPLITS = (Split("heads", "the heads"),)
_WAYS = {"fused": fused, "partly_fused": chain, "small_operators": small_operators}


def operators(component: KimiDeltaAttention, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    lane, width = token_lane(workload), component.heads * component.head_dim
    source = EXCHANGED_OUTPUT if exchanges_heads(workload) else GATED_NORM_OUTPUT
    return (
        *_projections(component, hidden, workload),
        *_inner(component, workload),
        linear(lane, "o_proj", source, width, hidden, ("self_attn.o_proj.weight",)),
        *leave(workload, hidden),
    )


def contexts(component: KimiDeltaAttention) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of it; where keys are passed around, it hands over its state."""
    del component
    return ("all_gather", "all_to_all", "ring")


def _inner(component: KimiDeltaAttention, workload: Workload) -> Iterator[Operator]:
    """From the convolution to the gated norm: on whole sequences, or on the rank's part of each."""
    width = component.heads * component.head_dim
    if exchanges_heads(workload):
        # q, k, v, decay, gate and beta go there as one tensor, the normed output comes back.
        yield from exchange(workload, 5 * width + component.heads)
        yield from _inner(share(component, workload.cp), between_exchanges(workload))
        yield from exchange(workload, width, back=True)
        return
    lane, convolutions = token_lane(workload), tuple(f"self_attn.{name}_conv1d.weight" for name in "qkv")
    yield from hand_over_edge(workload, component.conv_kernel - 1, 3 * width)
    yield short_convolution(lane, "short_conv", "qkv_projection", 3 * width, component.conv_kernel, convolutions)
    yield from hand_over_state(workload, 2 * component.heads * component.head_dim**2)
    yield _core(component, workload)
    yield gated_norm(lane, component.heads, component.head_dim, "self_attn.o_norm.weight")


def _projections(component: KimiDeltaAttention, hidden: int, workload: Workload) -> Iterator[Operator]:
    """Every tp rank runs the thin matrices that make the latents of decay and gate."""
    lane, width, rank = gathered_lane(workload), component.heads * component.head_dim, component.decay_rank
    names = (*"qkv", "b", "f_a", "g" if component.full_rank_gate else "g_a")
    yield from enter(workload, hidden, tuple(f"self_attn.{name}_proj.weight" for name in names))
    for name in "qkv":
        weight = (f"self_attn.{name}_proj.weight",)
        yield linear(lane, f"{name}_proj", MIXER_INPUT, hidden, width, weight, shares_input=name != "q")
    yield from _thin(workload, "f", hidden, rank, width)
    yield linear(lane, "b_proj", MIXER_INPUT, hidden, component.heads, ("self_attn.b_proj.weight",), shares_input=True)
    if component.full_rank_gate:
        yield linear(lane, "g_proj", MIXER_INPUT, hidden, width, ("self_attn.g_proj.weight",), shares_input=True)
    else:
        yield from _thin(workload, "g", hidden, component.head_dim, width)


def _thin(workload: Workload, name: str, hidden: int, rank: int, width: int) -> Iterator[Operator]:
    """Two thin matrices one after the other."""
    down, up = (f"self_attn.{name}_a_proj.weight",), (f"self_attn.{name}_b_proj.weight",)
    yield linear(gathered_lane(workload), f"{name}_a_proj", MIXER_INPUT, hidden, rank, down, shares_input=True)
    yield linear(token_lane(workload), f"{name}_b_proj", f"{name}_latent", rank, width, up)


def _core(component: KimiDeltaAttention, workload: Workload) -> Operator:
    """The delta rule, as the workload says that it runs."""
    lane, d = token_lane(workload), component.head_dim
    way = _WAYS[workload.core](Heads(lane, component.heads, d, workload.longest))
    return Operator(
        "delta_rule",
        forward=way.forward,
        backward=way.backward,
        backward_weight=(pointwise(FP32_BYTES * component.heads * (d + 1)),),
        weights=("self_attn.A_log", "self_attn.dt_bias"),
        saved=way.saved,
        makes=GATED_NORM_INPUT,
        output_bytes=lane.tensor_bytes(component.heads * d),
        workspace_bytes=way.workspace_bytes,
        backward_workspace_bytes=way.backward_workspace_bytes,
    )

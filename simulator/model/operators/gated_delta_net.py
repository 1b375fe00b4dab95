"""Gated delta net: projections, short convolution, the chunked delta rule with one decay a head, gated norm, output.

Kimi Delta Attention's chunk algebra with a scalar decay (models_and_formulas section 3.6, last line): scores are plain
products of a chunk's keys and queries, and decay sums are one number a token and head. Per token and value head, chunks
of C = 64: 6 d_k d_v + 2 C (3 d_k + 2 d_v) + 32 BC^3 / C FLOPs forward; backward as KDA's, 2.65 times that.

Context-parallel ranks hand the convolution's edge and the state from rank to rank, or trade their tokens for a share of
the heads from the projections to the gated norm, as Megatron-Core does.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import GatedDeltaNet
from simulator.model.operator import Context, Kernel, Operator, Saved, Workload
from simulator.model.operators.communication import enter, hand_over_edge, hand_over_state, leave
from simulator.model.operators.gated_norm import GATED_NORM_OUTPUT, gated_norm
from simulator.model.operators.gemm import linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, Lane, gathered_lane, pointwise, token_lane
from simulator.model.operators.short_convolution import short_convolution
from simulator.model.split import Split, share

SPLITS = (Split("k_heads", "the key heads"), Split("v_heads", "the value heads"))
_CHUNK = 64
_SUB_CHUNK = 16
_BACKWARD_FLOPS_RATIO = 2.65
_BACKWARD_BYTES_RATIO = 2.64
"""KDA's chain moves 26,524 B backward for 10,032 B forward."""
_CHAIN_BACKWARD_LAUNCHES = 13


def operators(component: GatedDeltaNet, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    value, source = component.v_heads * component.v_dim, GATED_NORM_OUTPUT
    if exchanges_heads(workload):
        source = EXCHANGED_OUTPUT
    return (
        *_projections(component, hidden, workload),
        *_inner(component, workload),
        linear(token_lane(workload), "out_proj", source, value, hidden, ("linear_attn.out_proj.weight",)),
        *leave(workload, hidden),
    )


def contexts(component: GatedDeltaNet) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of it; where keys are passed around, it hands over its state."""
    del component
    return ("all_gather", "all_to_all", "ring")


def _inner(component: GatedDeltaNet, workload: Workload) -> Iterator[Operator]:
    """From the convolution to the gated norm: on whole sequences, or on the rank's part of each."""
    mixed, value = _mixed_width(component), component.v_heads * component.v_dim
    if exchanges_heads(workload):
        # q, k, v, z, beta and alpha go there as one tensor, the normed output comes back.
        yield from exchange(workload, mixed + value + 2 * component.v_heads)
        yield from _inner(share(component, workload.cp), between_exchanges(workload))
        yield from exchange(workload, value, back=True)
        return
    lane, taps, conv = token_lane(workload), component.conv_kernel, ("linear_attn.conv1d.weight",)
    yield from hand_over_edge(workload, taps - 1, mixed)
    yield short_convolution(lane, "short_conv", "qkv_projection", mixed, taps, conv)
    yield from hand_over_state(workload, component.v_heads * component.k_dim * (component.v_dim + component.k_dim))
    yield _core(component, lane)
    yield gated_norm(lane, component.v_heads, component.v_dim, "linear_attn.norm.weight")


def forward_flops(component: GatedDeltaNet) -> float:
    """FLOPs of the delta rule a token and value head."""
    k, v = component.k_dim, component.v_dim
    return 6 * k * v + 2 * _CHUNK * (3 * k + 2 * v) + 32 * _SUB_CHUNK**3 / _CHUNK


def _mixed_width(component: GatedDeltaNet) -> int:
    return 2 * component.k_heads * component.k_dim + component.v_heads * component.v_dim


def _projections(component: GatedDeltaNet, hidden: int, workload: Workload) -> Iterator[Operator]:
    lane = gathered_lane(workload)
    widths = {"qkv": _mixed_width(component), "z": component.v_heads * component.v_dim}
    widths |= {"b": component.v_heads, "a": component.v_heads}
    yield from enter(workload, hidden, tuple(f"linear_attn.in_proj_{name}.weight" for name in widths))
    for name, width in widths.items():
        weight = (f"linear_attn.in_proj_{name}.weight",)
        yield linear(lane, f"in_proj_{name}", MIXER_INPUT, hidden, width, weight, shares_input=name != "qkv")


def _core(component: GatedDeltaNet, lane: Lane) -> Operator:
    """One kernel over its inputs and output in a fused stack; flash-linear-attention's chain elsewhere.

    The chain repeats q and k for each value head and keeps them normed; it keeps one score matrix a chunk.
    """
    fused, heads = lane.execution == "fused", component.v_heads
    k, v, b, rows = component.k_dim, component.v_dim, lane.element_bytes, lane.count * component.v_heads
    flops = rows * forward_flops(component)
    chain = _chain_bytes(k, v, b)
    one_pass = lane.tensor_bytes(2 * component.k_heads * k + 2 * heads * v) + 2 * rows * FP32_BYTES
    steps = [("kda", 1.0, one_pass)] if fused else [(kind, share, rows * moved) for kind, share, moved in chain]
    forward = tuple(Kernel(kind, flops * share, moved, (heads, k), lane.dtype) for kind, share, moved in steps)
    total = sum(kernel.bytes for kernel in forward)
    backward = Kernel(
        "kda",
        _BACKWARD_FLOPS_RATIO * flops,
        2 * total if fused else _BACKWARD_BYTES_RATIO * total,
        (heads, k),
        lane.dtype,
        launches=5 if fused else _CHAIN_BACKWARD_LAUNCHES,
    )
    state_bytes = rows * 2 * k * v / _CHUNK
    return Operator(
        "delta_rule",
        forward=forward,
        backward=(backward,),
        backward_weight=(pointwise(2 * FP32_BYTES * heads),),
        weights=("linear_attn.A_log", "linear_attn.dt_bias"),
        saved=tuple(_saved(component, lane)),
        output_bytes=lane.tensor_bytes(heads * v),
        workspace_bytes=0.0 if fused else state_bytes + rows * b * (k + 2 * v),
        backward_workspace_bytes=state_bytes + (0.0 if fused else rows * (b * (k + 2 * v) + FP32_BYTES * 2 * k)),
    )


def _chain_bytes(k: int, v: int, b: int) -> tuple[tuple[str, float, float], ...]:
    """Kind, share of the FLOPs and bytes a token and value head of each kernel in the forward chain."""
    state = 2 * k * v / _CHUNK
    return (
        ("norm", 0.0, 2 * (2 * k * b + FP32_BYTES)),
        ("elementwise", 0.0, 2 * FP32_BYTES),
        ("kda", 0.15, k * b + _CHUNK * FP32_BYTES),
        ("kda", 0.05, _CHUNK * (FP32_BYTES + b)),
        ("kda", 0.2, b * (2 * k + 2 * v + _CHUNK)),
        ("kda", 0.35, b * (2 * k + 2 * v) + state),
        ("kda", 0.25, b * (2 * k + 2 * v) + state),
    )


def _saved(component: GatedDeltaNet, lane: Lane) -> Iterator[Saved]:
    fused = lane.execution == "fused"
    rows, heads = lane.count * component.v_heads, component.k_heads if fused else component.v_heads
    yield lane.saved("delta_query", heads * component.k_dim)
    yield lane.saved("delta_key", heads * component.k_dim)
    yield lane.saved("delta_value", component.v_heads * component.v_dim)
    yield Saved("delta_gates", rows * 2 * FP32_BYTES)
    if not fused:
        yield Saved("delta_scores", rows * _CHUNK * lane.element_bytes)
        yield Saved("delta_norms", rows * 2 * FP32_BYTES)

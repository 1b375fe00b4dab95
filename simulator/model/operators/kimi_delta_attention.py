"""Kimi Delta Attention: projections, short convolutions, the chunked delta rule, gated norm, output.

The delta rule in chunks of C = 64 tokens costs 6 d^2 + 6 C d + 40 BC^2 d / C + 32 BC^3 / C FLOPs a token and head (BC
= 16) and is bound by memory: the flash-linear-attention chain moves 10,032 B a token and head forward and 26,524
backward at d = 128, a hand-fused kernel 1,282 and 2,566 (models_and_formulas section 3.6, "Kernel list and bytes per
token-head"). Other head dims scale the chain's bytes by d / 128, which is exact but for the C-wide score matrices.

Context-parallel ranks hand the convolution's edge and the state from rank to rank, or trade their tokens for a share of
the heads from the projections to the gated norm, as Megatron-Core does around its gated delta net.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import KimiDeltaAttention
from simulator.model.operator import Context, Kernel, Operator, Saved, Workload
from simulator.model.operators.communication import enter, hand_over_edge, hand_over_state, leave
from simulator.model.operators.gated_norm import GATED_NORM_OUTPUT, gated_norm
from simulator.model.operators.gemm import linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, Lane, gathered_lane, pointwise, token_lane
from simulator.model.operators.short_convolution import short_convolution
from simulator.model.split import Split, share

SPLITS = (Split("heads", "the heads"),)
_CHUNK = 64
_SUB_CHUNK = 16
_TABLE_DIM = 128

_Step = tuple[str, int, int, int]
"""Kernel kind, FLOPs and bytes a token and head at d = 128, launches."""

_CHAIN_FORWARD: tuple[_Step, ...] = (
    ("norm", 0, 1032, 2),  # l2 norms of q and k
    ("elementwise", 0, 768, 1),  # gate and its cumulative sum within the chunk
    ("kda", 8_192, 1248, 1),  # scores within sub-chunks
    ("fill", 0, 128, 1),  # zero fill of the key-key scores
    ("kda", 14_336, 1216, 1),  # scores between sub-chunks and the triangular inverse
    ("kda", 32_768, 1920, 1),  # w and u
    ("kda", 65_536, 1544, 1),  # the state, sequential over chunks
    ("kda", 49_152, 2176, 1),  # output
)
_CHAIN_BACKWARD: tuple[_Step, ...] = (
    ("elementwise", 0, 768, 1),  # again: gate and cumulative sum
    ("kda", 32_768, 2432, 1),  # again: w and u, with the gated q and k
    ("kda", 65_536, 1544, 1),  # again: the state
    ("kda", 32_768, 1152, 1),  # dA and dv
    ("kda", 98_304, 2048, 1),  # the state's gradient, sequential over chunks
    ("kda", 180_224, 5252, 1),  # w, y, dq, dk, dg in fp32
    ("kda", 40_960, 6160, 1),  # gradients through the scores
    ("elementwise", 0, 1024, 1),  # reverse cumulative sum
    ("elementwise", 0, 1280, 1),  # the gate's gradient
    ("norm", 0, 2560, 2),  # l2 norms' gradient
    ("cast_down", 0, 2304, 3),
)
_FUSED_FORWARD: tuple[_Step, ...] = (("kda", 169_984, 1282, 1),)
_FUSED_BACKWARD: tuple[_Step, ...] = (("kda", 450_560, 2566, 5),)


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
    yield _core(component, lane)
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


def _core(component: KimiDeltaAttention, lane: Lane) -> Operator:
    """The delta rule. A fused kernel keeps its inputs only; the chain keeps normed q and k and both score matrices."""
    fused = lane.execution == "fused"
    d, rows = component.head_dim, lane.count * component.heads
    beta_bytes = lane.element_bytes
    kept = [Saved(f"delta_{name}", rows * d * lane.element_bytes) for name in ("query", "key", "value", "decay")]
    kept.append(Saved("delta_beta", rows * (beta_bytes if fused else beta_bytes + FP32_BYTES)))
    if not fused:
        kept.append(Saved("delta_scores", rows * 2 * _CHUNK * lane.element_bytes))
        kept.append(Saved("delta_norms", rows * 2 * FP32_BYTES))
    return Operator(
        "delta_rule",
        forward=_kernels(_FUSED_FORWARD if fused else _CHAIN_FORWARD, component, lane),
        backward=_kernels(_FUSED_BACKWARD if fused else _CHAIN_BACKWARD, component, lane),
        backward_weight=(pointwise(FP32_BYTES * component.heads * (d + 1)),),
        weights=("self_attn.A_log", "self_attn.dt_bias"),
        saved=tuple(kept),
        output_bytes=lane.tensor_bytes(component.heads * d),
        workspace_bytes=0.0 if fused else rows * _chain_workspace(d),
        backward_workspace_bytes=rows * (_state_bytes(d) if fused else _chain_workspace(d) + 4 * d * FP32_BYTES),
    )


def forward_flops(head_dim: int) -> float:
    """FLOPs of the chunked delta rule a token and head, with equal key and value dims."""
    inner = 40 * _SUB_CHUNK**2 * head_dim + 32 * _SUB_CHUNK**3
    return 6 * head_dim**2 + 6 * _CHUNK * head_dim + inner / _CHUNK


def _kernels(steps: tuple[_Step, ...], component: KimiDeltaAttention, lane: Lane) -> tuple[Kernel, ...]:
    rows, d = lane.count * component.heads, component.head_dim
    flops_scale = rows * forward_flops(d) / forward_flops(_TABLE_DIM)
    bytes_scale = rows * d / _TABLE_DIM
    return tuple(
        Kernel(kind, flops * flops_scale, moved * bytes_scale, (component.heads, d), lane.dtype, launches=launches)
        for kind, flops, moved, launches in steps
    )


def _state_bytes(d: int) -> float:
    """One bf16 state matrix per chunk, spread over its tokens."""
    return 2 * d * d / _CHUNK


def _chain_workspace(d: int) -> float:
    """Per token and head: decay sums in fp32, w, u, gated k and new v in bf16, and the states of all chunks."""
    return d * FP32_BYTES + 4 * d * 2 + _state_bytes(d)

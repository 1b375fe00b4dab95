"""A Mamba-2 mixer: one input projection, short convolution, state-space scan in chunks, gated norm, output.

The scan in chunks of Q tokens (Dao and Gu, "Transformers are SSMs", 2024, section 6), per token: 2 Q N FLOPs a group
for C B^T, and a head 2 Q P for its product with x, 2 N P into the state and 2 N P out of it (N state, P head dim).
Five kernels forward and about ten backward at 2.5 times the work; a fused stack joins each side into two.

Context-parallel ranks hand the convolution's edge and the state from rank to rank, or trade their tokens for a share of
the heads and groups from the projection to the gated norm, as Megatron-Core does.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import Mamba2
from simulator.model.operator import Context, Kernel, Operator, Saved, Workload
from simulator.model.operators.communication import enter, hand_over_edge, hand_over_state, leave
from simulator.model.operators.gated_norm import GATED_NORM_OUTPUT, gated_norm
from simulator.model.operators.gemm import linear
from simulator.model.operators.head_exchange import EXCHANGED_OUTPUT, between_exchanges, exchange, exchanges_heads
from simulator.model.operators.lane import FP32_BYTES, MIXER_INPUT, Lane, gathered_lane, pointwise, token_lane
from simulator.model.operators.short_convolution import short_convolution
from simulator.model.split import Split, share

SPLITS = (Split("heads", "the heads"), Split("groups", "the groups", copied=True))
_BACKWARD_RATIO = 2.5


def operators(component: Mamba2, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    inner, joined = component.heads * component.head_dim, ("mixer.in_proj.weight",)
    source = EXCHANGED_OUTPUT if exchanges_heads(workload) else GATED_NORM_OUTPUT
    width = inner + _channels(component) + component.heads
    return (
        *enter(workload, hidden, joined),
        linear(gathered_lane(workload), "in_proj", MIXER_INPUT, hidden, width, joined),
        *_inner(component, workload),
        linear(token_lane(workload), "out_proj", source, inner, hidden, ("mixer.out_proj.weight",)),
        *leave(workload, hidden),
    )


def contexts(component: Mamba2) -> tuple[Context, ...]:
    """Ways of context parallelism that are known of it; where keys are passed around, it hands over its state."""
    del component
    return ("all_gather", "all_to_all", "ring")


def _inner(component: Mamba2, workload: Workload) -> Iterator[Operator]:
    """From the convolution to the gated norm: on whole sequences, or on the rank's part of each."""
    inner, channels = component.heads * component.head_dim, _channels(component)
    if exchanges_heads(workload):
        # z, x, B, C and the steps go there, the normed output comes back.
        groups = component.groups * component.state
        yield from exchange(workload, inner, inner, groups, groups, component.heads)
        yield from _inner(share(component, workload.cp), between_exchanges(workload))
        yield from exchange(workload, inner, back=True)
        return
    lane = token_lane(workload)
    conv = ("mixer.conv1d.weight",) + (("mixer.conv1d.bias",) if component.conv_bias else ())
    yield from hand_over_edge(workload, component.conv_kernel - 1, channels)
    yield short_convolution(lane, "short_conv", "scan_projection", channels, component.conv_kernel, conv)
    yield from hand_over_state(workload, component.heads * (component.head_dim * component.state + 1))
    yield _scan(component, lane)
    yield gated_norm(lane, 1, inner, "mixer.norm.weight")


def forward_flops(component: Mamba2) -> float:
    """FLOPs of the scan a token, over all heads and groups."""
    q, n, p = component.chunk, component.state, component.head_dim
    return component.groups * 2 * q * n + component.heads * (2 * q * p + 4 * n * p)


def _channels(component: Mamba2) -> int:
    """x, and B and C of each group."""
    return component.heads * component.head_dim + 2 * component.groups * component.state


def _scan(component: Mamba2, lane: Lane) -> Operator:
    """Bytes: x, B, C, dt in and y out once; the chain also writes and reads chunk states and scores."""
    fused, heads = lane.execution == "fused", component.heads
    inner, flops = heads * component.head_dim, lane.count * forward_flops(component)
    steps = lane.count * heads * FP32_BYTES
    states = FP32_BYTES * inner * component.state * lane.count / component.chunk
    scores = FP32_BYTES * lane.count * component.groups * component.chunk
    moved = lane.tensor_bytes(_channels(component) + inner) + steps
    moved += 2 * states if fused else 4 * states + 2 * scores + lane.tensor_bytes(inner) + 3 * steps
    shape = (heads, component.head_dim)

    def kernel(ratio: float, launches: int) -> Kernel:
        return Kernel("scan", ratio * flops, ratio * moved, shape, lane.dtype, launches=launches)

    return Operator(
        "scan",
        forward=(kernel(1.0, 2 if fused else 5),),
        backward=(kernel(_BACKWARD_RATIO, 4 if fused else 10),),
        backward_weight=(pointwise(3 * FP32_BYTES * heads),),
        weights=("mixer.dt_bias", "mixer.A_log", "mixer.D"),
        saved=(lane.saved("scan_input", _channels(component)), Saved("scan_steps", steps)),
        output_bytes=lane.tensor_bytes(inner),
        workspace_bytes=states + scores,
        backward_workspace_bytes=2 * states + scores,
    )

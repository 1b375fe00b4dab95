"""A mixture of experts: router, latent projections, dispatch, two grouped products, combine, shared experts.

With a latent width both all-to-alls and the experts work in it, between a down- and an up-projection; the shared
experts and the router read the full width (models_and_formulas sections 1.3 and 3.8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.architecture import DenseFeedForward, MixtureOfExperts
from simulator.model.operator import Operator, Workload, part_of
from simulator.model.operators.activation import activation
from simulator.model.operators.communication import join_shares, share_experts, take_share
from simulator.model.operators.dense_feed_forward import feed_forward
from simulator.model.operators.dispatch import COMBINED, combine_operators, dispatch_operators
from simulator.model.operators.gate import sigmoid_gate
from simulator.model.operators.gemm import grouped_linear, linear
from simulator.model.operators.lane import (
    EXPERT_HIDDEN,
    EXPERT_INPUT,
    FEED_FORWARD_INPUT,
    Lane,
    Step,
    chain,
    own_lane,
    routed_lane,
    sent_lane,
)
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.residual import residual_add
from simulator.model.operators.router import router_operators
from simulator.model.split import Split

SPLITS = (
    Split("intermediate", "the intermediate width", axis="etp"),
    Split("shared_intermediate", "the shared experts' intermediate width"),
)


def operators(component: MixtureOfExperts, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *component* in a model *hidden* wide."""
    tokens, sent, routed = own_lane(workload), sent_lane(workload), routed_lane(workload)
    width = component.latent or hidden
    padded = workload.padded_experts
    once, masked = workload.sent_once and not padded, not workload.spread_experts
    *dispatch, sort_by_expert = dispatch_operators(
        component, sent, routed, width, padded=padded, once=once, framework=workload.framework_table, masked=masked
    )
    home = combine_operators(component, sent, routed, width, padded=padded, once=once, masked=masked)
    sort_by_source, *combine = home
    return (
        *router_operators(component, tokens, hidden, padded=padded, fused=workload.fused_router),
        *_latent_down(component, tokens, hidden),
        *take_share(workload, width),
        *dispatch,
        *share_experts(workload, routed, width, "before"),
        sort_by_expert,
        *_experts(component, routed, width, masked=masked),
        sort_by_source,
        *share_experts(workload, routed, width, "behind"),
        *combine,
        *join_shares(workload, width),
        *_latent_up(component, tokens, hidden),
        *_shared_experts(component, workload, hidden),
    )


def _latent_down(component: MixtureOfExperts, tokens: Lane, hidden: int) -> Iterator[Operator]:
    if component.latent is not None:
        weight = ("mlp.routed_expert_down_proj.weight",)
        yield linear(tokens, "latent_down", FEED_FORWARD_INPUT, hidden, component.latent, weight, shares_input=True)


def _latent_up(component: MixtureOfExperts, tokens: Lane, hidden: int) -> Iterator[Operator]:
    if component.latent is None:
        return
    source = COMBINED
    if component.latent_norm:
        shape = NormShape(component.latent)
        yield rms_norm(tokens, "latent_norm", source, shape, "mlp.routed_expert_norm.weight")
        source = "combined_normed"
    yield linear(tokens, "latent_up", source, component.latent, hidden, ("mlp.routed_expert_up_proj.weight",))


def _experts(component: MixtureOfExperts, routed: Lane, width: int, *, masked: bool) -> Iterator[Operator]:
    """Gate and up as one grouped product, the activation, the second grouped product; one routed row each."""
    inner, names = component.intermediate, ("gate", "up") if component.gated else ("up",)
    joined = len(names) * inner
    first = tuple(f"mlp.experts.{name}_proj" for name in names)
    product = grouped_linear(routed, "experts_fc1", EXPERT_INPUT, width, joined, first, bias=component.bias)
    yield replace(product, makes=EXPERT_HIDDEN) if routed.execution == "fused" else product
    if routed.execution != "fused" and masked:
        yield _padding_mask(routed, joined, gated=component.gated)
    function = component.activation
    gated, name = component.gated, "experts_activation"
    act = activation(routed, name, EXPERT_HIDDEN, inner, function, gated=gated, joined=True)
    yield from part_of("moe_act", [act])
    second = ("mlp.experts.down_proj",)
    yield grouped_linear(routed, "experts_fc2", "experts_activated", inner, width, second, bias=component.bias)


def _padding_mask(routed: Lane, width: int, *, gated: bool) -> Operator:
    """Zeroes rows that no expert computed, as Hugging Face's experts do: a clone and a fill, or one compiled kernel.

    Eager does the same to the gradient, after joining its two halves; compiled, that is part of the activation's
    kernel.
    """
    b, name = routed.element_bytes, "experts_mask"
    output_bytes = routed.tensor_bytes(width)
    if not routed.eager:
        kernels = chain(width, 2 * b)
        return Operator(name, kernels, makes=EXPERT_HIDDEN, output_bytes=output_bytes, rows="routed")
    fill = (2 * b, Step("masked_fill", 2 * b))
    join = (2 * b,) if gated else ()
    backward = chain(width, *join, *fill)
    return Operator(name, chain(width, *fill), backward, makes=EXPERT_HIDDEN, output_bytes=output_bytes, rows="routed")


def _shared_experts(component: MixtureOfExperts, workload: Workload, hidden: int) -> Iterator[Operator]:
    """All shared experts as one dense part beside the routed ones, its gate, and the sum of both."""
    if not component.shared_intermediate:
        return
    tokens = own_lane(workload)
    part = DenseFeedForward(component.shared_intermediate, component.activation, component.gated)
    inner = list(feed_forward(part, workload, hidden, "mlp.shared_experts", shares_input=True))
    if component.shared_gate:
        weight = ("mlp.shared_expert_gate.weight",)
        inner.append(linear(tokens, "shared_gate_proj", FEED_FORWARD_INPUT, hidden, 1, weight, shares_input=True))
        inner.append(sigmoid_gate(tokens, "shared_gate", "shared_output", "shared_gate_logit", hidden, 1))
    yield from part_of("shared_experts", inner)
    yield residual_add(tokens, "shared_add", hidden)

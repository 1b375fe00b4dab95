"""Parameters of a mixture of experts: router, latent projections, shared experts, routed experts."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import MixtureOfExperts
from simulator.model.parameter import Parameter, linear, norm


def parameters(feed_forward: MixtureOfExperts, hidden: int) -> Iterator[Parameter]:
    """All weights in a model *hidden* wide; each matrix of the routed experts is one tensor, experts first."""
    yield from _router(feed_forward, hidden)
    if feed_forward.latent is not None:
        yield from linear("mlp.routed_expert_down_proj", feed_forward.latent, hidden, "latent")
        if feed_forward.latent_norm:
            yield from norm("mlp.routed_expert_norm", feed_forward.latent, "latent")
        yield from linear("mlp.routed_expert_up_proj", hidden, feed_forward.latent, "latent")
    yield from _shared(feed_forward, hidden)
    yield from _routed(feed_forward, feed_forward.latent or hidden)


def _inner(feed_forward: MixtureOfExperts) -> tuple[str, ...]:
    return ("gate", "up") if feed_forward.gated else ("up",)


def _router(feed_forward: MixtureOfExperts, hidden: int) -> Iterator[Parameter]:
    choices = feed_forward.experts + feed_forward.zero_experts
    yield from linear("mlp.gate", choices, hidden, "router")
    if feed_forward.router_bias:
        yield Parameter("mlp.gate.e_score_correction_bias", (choices,), "router", dtype="fp32")


def _shared(feed_forward: MixtureOfExperts, hidden: int) -> Iterator[Parameter]:
    width = feed_forward.shared_intermediate
    if not width:
        return
    for name in _inner(feed_forward):
        yield from linear(f"mlp.shared_experts.{name}_proj", width, hidden, "shared_expert")
    yield from linear("mlp.shared_experts.down_proj", hidden, width, "shared_expert")
    if feed_forward.shared_gate:
        yield from linear("mlp.shared_expert_gate", 1, hidden, "shared_expert")


def _routed(feed_forward: MixtureOfExperts, width: int) -> Iterator[Parameter]:
    experts, intermediate = feed_forward.experts, feed_forward.intermediate
    for name in _inner(feed_forward):
        yield Parameter(f"mlp.experts.{name}_proj", (experts, width, intermediate), "routed_expert")
        if feed_forward.bias:
            yield Parameter(f"mlp.experts.{name}_proj_bias", (experts, intermediate), "routed_expert")
    yield Parameter("mlp.experts.down_proj", (experts, intermediate, width), "routed_expert")
    if feed_forward.bias:
        yield Parameter("mlp.experts.down_proj_bias", (experts, width), "routed_expert")

"""What rules out a way in which rows find their experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.parallel.mesh import Mesh
from simulator.program.exchanges import Way, exchanges
from simulator.program.expert_load import node_members

PLAIN = "all_to_all"
"""The way that goes with everything."""


def exchange_problems(scenario: Scenario, architecture: Architecture, cluster: Cluster) -> Iterator[str]:
    """Why the scenario's way does not go with its model, split and machines."""
    split, gpu_direct = scenario.parallel, scenario.cluster.gpu_direct
    yield from way_problems(
        scenario.training.exchange, architecture, cluster, split.ep, split.etp, gpu_direct=gpu_direct
    )


def way_problems(
    name: str,
    architecture: Architecture,
    cluster: Cluster,
    ep: int,
    etp: int,
    *,
    gpu_direct: bool,
    field: str = "training.exchange",
) -> Iterator[str]:
    """Why the way of that *name*, which *field* asks for, does not go with *ep* x *etp* ranks of a group."""
    if name == PLAIN:
        return
    way, where, domain = exchanges()[name], f"{field}: found {name}", cluster.scale_up_domain
    parts = [layer.feed_forward for layer in architecture.moe_layers()]
    if any(isinstance(part, MixtureOfExperts) and part.zero_experts for part in parts):
        yield f"{where}, and some experts return their input unsent; allowed: {PLAIN}"
    group = ep * etp
    together = node_members(Mesh(dp_shard=group, ep=ep, etp=etp), domain)
    if way.by_node and not together:
        yield (
            f"{where}, but ep {ep} x etp {etp} = {group} ranks lie unevenly in domains of {domain} accelerators; "
            f"allowed: {_named(lambda way: not way.by_node)}, or a divisor or multiple of {domain}"
        )
    if not way.one_sided or together == ep:
        return
    if not gpu_direct:
        yield f"{where}, whose ports write into accelerators, but cluster.gpu_direct is off"
    if cluster.node.nic is None or cluster.node.nic.one_sided is None:
        yield (
            f"{where}, but what ports of {cluster.node.name} attain so is not known (its file has no nic.one_sided); "
            f"allowed: {_named(lambda way: not way.one_sided)}"
        )


def too_many_tokens(name: str, tokens: int, field: str = "training.exchange") -> Iterator[str]:
    """Why so many *tokens* of a rank do not go with the way of that *name*, which *field* asks for."""
    most = exchanges()[name].most_tokens
    if most is not None and tokens > most:
        yield (
            f"{field}: found {name}, but each rank brings {tokens:,} tokens to experts at once, and "
            f"its kernels count to {most:,}; nearest valid: {most:,} tokens, or "
            f"{_named(lambda way: way.most_tokens is None)}"
        )


def _named(fits: Callable[[Way], bool]) -> str:
    return ", ".join(name for name, way in exchanges().items() if fits(way))

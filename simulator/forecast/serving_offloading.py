"""What a scenario of serving keeps below the card, and what of it does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.lower_tiers import Tier
from simulator.hardware.cluster import Cluster
from simulator.hardware.node import Node
from simulator.model.architecture import Architecture
from simulator.program.drives import Drives
from simulator.program.host_memory import HostMemory
from simulator.program.offload import OnDrives
from simulator.program.serving.offload import Reads, ServingOffload

_WHERE = "serving.offload"


def serving_offload(scenario: ServingScenario) -> ServingOffload:
    """What *scenario* keeps below the card."""
    asked = scenario.serving.offload
    drives = asked.nvme
    reads = Reads(drives.direct, drives.block, drives.queue_depth) if asked.weights_on == "nvme" else None
    return ServingOffload(
        asked.weights,
        reads,
        asked.kv_cache,
        asked.prefetch,
        asked.experts,
        asked.experts_on_card,
        asked.threads,
    )


def serving_offload_problems(scenario: ServingScenario, architecture: Architecture, cluster: Cluster) -> Iterator[str]:
    """Why the other settings, the model or the machines have no such offload."""
    offload, serving = serving_offload(scenario), scenario.serving
    yield from _idle_fields(scenario)
    if offload and serving.two_batch_overlap:
        yield "serving.two_batch_overlap: halves beside what comes up from the host are not simulated; leave it out"
    if (offload or serving.offload.kept_in_ddr) and serving.prefill is not None:
        yield f"{_WHERE}: is not simulated with accelerators that prefill apart; leave out one of them"
    if offload.experts:
        yield from _expert_problems(scenario, architecture)
    yield from _node_problems(scenario, cluster.node, min(cluster.accelerators, cluster.node.accelerators))


def lower_tiers(scenario: ServingScenario, cluster: Cluster) -> tuple[Tier, ...]:
    """Where caches go that a card of *cluster* lets go, as its part of the node has it."""
    asked = scenario.serving.offload
    cards, host = min(cluster.accelerators, cluster.node.accelerators), HostMemory(cluster, 1)
    found = [Tier("ddr", asked.kept_in_ddr / cards, lambda size: host.into(size).longest_s, host.into(1e9).grade)]
    if asked.kept_on_nvme and cluster.node.nvme is not None:
        drives = asked.nvme
        way = OnDrives(1.0, 1, False, False, drives.direct, drives.block, drives.queue_depth)
        reader = Drives(cluster, host, way)
        read = reader.read_to_card if drives.direct else reader.read
        found.append(Tier("nvme", asked.kept_on_nvme / cards, lambda size: read(size).longest_s, read(1e9).grade))
    return tuple(found) if asked.kept_in_ddr else ()


def _idle_fields(scenario: ServingScenario) -> Iterator[str]:
    """Fields that say how, where there is no what."""
    asked = scenario.serving.offload
    found = asked.model_fields_set
    if "weights_on" in found and not asked.weights:
        yield f"{_WHERE}.weights_on: no weights come up; leave it out, or weights"
    if asked.nvme.model_fields_set and asked.weights_on != "nvme" and not asked.kept_on_nvme:
        yield f"{_WHERE}.nvme: nothing is on drives; leave it out, or weights_on nvme, or kept_on_nvme"
    if asked.kept_on_nvme and not asked.kept_in_ddr:
        yield f"{_WHERE}.kept_on_nvme: drives keep what host memory lets go; leave it out, or kept_in_ddr"
    if "prefetch" in found and not asked.weights and not asked.kv_cache:
        yield f"{_WHERE}.prefetch: nothing comes ahead; leave it out, or weights or kv_cache"
    if "experts_on_card" in found and asked.experts is None:
        yield f"{_WHERE}.experts_on_card: all experts are where other weights are; leave it out, or experts"
    if "threads" in found and asked.experts != "cores":
        yield f"{_WHERE}.threads: cores compute nothing; leave it out, or experts cores"


def _expert_problems(scenario: ServingScenario, architecture: Architecture) -> Iterator[str]:
    split = scenario.parallel
    if next(iter(architecture.moe_layers()), None) is None:
        yield f"{_WHERE}.experts: {architecture.model_type} has no routed experts; leave it out"
    if split.ep > 1:
        yield f"{_WHERE}.experts: found with ep {split.ep}, whose exchanges with hosts are not simulated; allowed: ep 1"


def _node_problems(scenario: ServingScenario, node: Node, cards: int) -> Iterator[str]:
    asked = scenario.serving.offload
    if asked.weights_on == "nvme" and node.nvme is None:
        yield f"{_WHERE}.weights_on: found nvme, but {node.name} has no drives; allowed: ddr, or a node file with nvme"
    if asked.kept_on_nvme and node.nvme is None:
        yield f"{_WHERE}.kept_on_nvme: found, but {node.name} has no drives; leave it out, or a node file with nvme"
    if asked.experts != "cores":
        return
    if not node.cpu.flops_per_s:
        yield (
            f"{_WHERE}.experts: found cores, but how fast those of {node.name} multiply is not known; allowed: "
            "fetched, or a node file with cpu.flops_per_s"
        )
    threads, cores = asked.threads * cards, node.cpu.cores.value
    if threads > cores:
        yield (
            f"{_WHERE}.threads: found {asked.threads}, and threads({asked.threads}) * {cards} cards of a node = "
            f"{threads}, but {node.name} has {cores} cores; nearest: {cores // cards}"
        )

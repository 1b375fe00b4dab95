"""From a scenario of serving to its pools: files looked up, degrees checked, every problem told at once."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from pathlib import Path

import numpy as np

from simulator.forecast.assembly import find_architecture, find_cluster
from simulator.forecast.errors import Refused
from simulator.forecast.exchanging import too_many_tokens, way_problems
from simulator.forecast.popularity import Popularity
from simulator.forecast.scenario_routing import Balancing
from simulator.forecast.scenario_serving import Serving, ServingParallel, ServingScenario
from simulator.forecast.serving.plan import Limits
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.requests import Request
from simulator.forecast.serving_offloading import lower_tiers, serving_offload, serving_offload_problems
from simulator.forecast.serving_problems import pools as asked_pools
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.model.serving.formats import FORMATS, Formats
from simulator.model.serving.held import served_problems
from simulator.model.split import split_problems
from simulator.parallel.mesh import Mesh
from simulator.program.serving.deployment import Deployment, slot_popularity
from simulator.program.serving.memory import rank_memory
from simulator.routing.outcome import Setting
from simulator.routing.policies import apply_policy, plans, policy_names
from simulator.routing.table import FloatArray
from simulator.routing.workloads import Shape


def deploy(scenario: ServingScenario, folder: Path, wanted: Many[Request]) -> tuple[Pool, ...]:
    """The pool that decodes, or does all, and the one that prefills apart, if there is one, for requests *wanted*.

    Raise :exc:`Refused` with everything that does not go together, and what the readers of the files raise.
    """
    architecture = find_architecture(scenario.model, folder)
    problems = [f"model: {told}" for told in served_problems(architecture, scenario.serving.kv_cache)]
    problems += _routing_problems(scenario, architecture)
    problems += _request_problems(scenario, wanted, architecture)
    found = []
    for where, split, accelerators in asked_pools(scenario):
        cluster = find_cluster(scenario.cluster.model_copy(update={"accelerators": accelerators}), folder)
        problems += _split_problems(where, split, architecture)
        problems += _exchange_problems(scenario, where, split, architecture, cluster)
        problems += serving_offload_problems(scenario, architecture, cluster)
        found.append((split, cluster))
    if problems:
        raise Refused(list(dict.fromkeys(problems)))
    longest = (max(one.longest for one in wanted), max(one.prompt_tokens for one in wanted))
    return tuple(
        _pool(scenario, folder, architecture, *each, tokens, apart=bool(number))
        for number, (each, tokens) in enumerate(zip(found, longest, strict=False))
    )


def _pool(
    scenario: ServingScenario,
    folder: Path,
    architecture: Architecture,
    split: ServingParallel,
    cluster: Cluster,
    longest_tokens: int,
    *,
    apart: bool,
) -> Pool:
    """That of *split*, whose sequences' caches have up to *longest_tokens*; *apart*: it prefills alone."""
    serving, prefill = scenario.serving, scenario.serving.prefill if apart else None
    tokens = prefill.max_batch_tokens if prefill else serving.max_batch_tokens
    mesh = _mesh(split)
    deployment = Deployment(
        architecture=architecture,
        cluster=cluster,
        mesh=mesh,
        formats=Formats(FORMATS[serving.weights], FORMATS[serving.experts or serving.weights], serving.kv_cache),
        most_tokens=tokens,
        most_sequences=serving.max_sequences,
        longest_tokens=longest_tokens,
        cuda_graphs=serving.cuda_graphs,
        prefill_exchange=serving.prefill_exchange,
        decode_exchange=serving.exchange,
        two_batch_overlap=serving.two_batch_overlap,
        prefill_code=serving.prefill_code,
        popularity=_popularity(scenario, architecture, folder, mesh, cluster.node.accelerators),
        offload=serving_offload(scenario),
        in_order=scenario.routing.policy is None,
    )
    memories = [rank_memory(deployment, stage) for stage in range(mesh.pp)]
    usable = cluster.accelerator.hbm_capacity_bytes * serving.memory_utilization
    limits = _limits(scenario, tokens, apart=apart)
    tiers, often = lower_tiers(scenario, cluster), serving.receive_every
    found = [Pool(deployment, memory, usable, serving.block_tokens, limits, often, tiers) for memory in memories]
    return min(found, key=lambda pool: pool.cache_bytes / max(1.0, pool.memory.cache.bytes_of(longest_tokens)))


def _limits(scenario: ServingScenario, tokens: int, *, apart: bool) -> Limits:
    """Of ranks with *tokens* tokens in an iteration."""
    serving = scenario.serving
    wait = None if apart else serving.batch_wait
    return Limits(
        serving.max_sequences,
        tokens,
        mixed=serving.batching == "mixed" or apart,
        reserves=serving.admission == "answer" and not apart,
        chunked=serving.chunked_prefill,
        wait_iterations=wait.iterations if wait else 0,
        wait_share=wait.tokens_share if wait else 1.0,
    )


def _mesh(split: ServingParallel) -> Mesh:
    """Ranks of tp that have the same requests count as one; those that share experts make an engine."""
    engine = max(1, split.ep * split.etp // split.tp)
    return Mesh(split.dp_replicate // engine, engine, split.ep, split.tp, 1, split.pp, split.etp)


def _popularity(
    scenario: ServingScenario, architecture: Architecture, folder: Path, mesh: Mesh, ranks_per_node: int
) -> FloatArray | None:
    """Shares of the slots for experts, as routing and policy have it; None without experts."""
    parts = [layer.feed_forward for layer in architecture.moe_layers()]
    if not parts:
        return None
    assert isinstance(parts[0], MixtureOfExperts)
    experts, top_k = parts[0].experts, parts[0].top_k
    asked = scenario.routing
    popularity = Popularity(asked, folder, len(parts), experts, top_k)
    policy = asked.policy or Balancing(name="contiguous")
    (table,) = popularity.at(0, 1, Shape(experts, top_k, mesh.ep, scenario.serving.max_sequences))
    planned = popularity.of_trace(policy.planned_on, "policy.planned_on") if policy.planned_on else table
    setting = Setting(mesh.ep, top_k, scenario.serving.max_sequences, ranks_per_node, seed=asked.seed)
    outcome = apply_policy(policy.name, planned, table, setting, **policy.options)
    return np.asarray(slot_popularity(outcome.placement, table))


def _routing_problems(scenario: ServingScenario, architecture: Architecture) -> Iterator[str]:
    routing = scenario.routing
    if next(iter(architecture.moe_layers()), None) is None:
        for name in ("trace", "synthetic", "policy"):
            if getattr(routing, name) is not None:
                yield f"routing.{name}: {architecture.model_type} has no routed experts to route to; leave it out"
        if scenario.serving.experts is not None:
            yield f"serving.experts: {architecture.model_type} has no routed experts; leave it out"
    policy = routing.policy
    if policy is not None and policy.name in policy_names() and not plans(policy.name):
        placing = ", ".join(name for name in policy_names() if plans(name))
        yield f"routing.policy.name: found {policy.name}, which does not place experts; allowed: {placing}"


def _request_problems(scenario: ServingScenario, wanted: Many[Request], architecture: Architecture) -> Iterator[str]:
    if scenario.serving.prefix_cache and not any(one.hash_ids for one in wanted):
        yield (
            "serving.prefix_cache: true finds prompts by their hash_ids, and no request of "
            f"{scenario.serving.requests.trace} has any; leave it out"
        )
    most, found = architecture.max_positions, max(one.prompt_tokens + one.output_tokens for one in wanted)
    if most and found > most:
        yield f"serving.requests: found one of {found:,} tokens, the model takes at most {most:,} positions"
    if scenario.serving.requests.prefilled and all(one.output_tokens == 1 for one in wanted):
        yield "serving.requests: found answers of 1 token alone, which prefill makes, and prompts are prefilled"
    if not scenario.serving.chunked_prefill:
        yield from _whole_prompt_problems(scenario.serving, wanted)


def _whole_prompt_problems(serving: Serving, wanted: Many[Request]) -> Iterator[str]:
    """Of prompts that are not cut; what is computed again, where caches were let go, has tokens of its answer, too."""
    prompt, again = max(one.prompt_tokens for one in wanted), max(one.longest for one in wanted)
    if serving.prefill:
        yield from _no_room("serving.prefill.max_batch_tokens", serving.prefill.max_batch_tokens, prompt, "not cut")
    if serving.admission == "prompt":
        why = "and all of its answer, which preemptions have computed again, not cut"
        yield from _no_room("serving.max_batch_tokens", serving.max_batch_tokens, again, why)
    elif not serving.prefill:
        yield from _no_room("serving.max_batch_tokens", serving.max_batch_tokens, prompt, "not cut")


def _no_room(where: str, most: int, longest: int, why: str) -> Iterator[str]:
    if longest > most:
        told = f"found {most:,}, and a prompt of {longest:,} tokens, {why} (chunked_prefill: false)"
        yield f"{where}: {told}; nearest: {longest}"


def _idle_exchanges(scenario: ServingScenario, where: str) -> Iterator[str]:
    """Ways that accelerators of *where* would send rows, and there are none."""
    serving = scenario.serving
    for field, pool in (
        ("exchange", "parallel"),
        ("prefill_exchange", "serving.prefill.parallel" if serving.prefill else "parallel"),
    ):
        if pool == where and field in serving.model_fields_set:
            told = f"found {getattr(serving, field)}, but with ep x etp up to tp in {where} no rows are exchanged"
            yield f"serving.{field}: {told}; leave it out"


def _split_problems(where: str, split: ServingParallel, architecture: Architecture) -> Iterator[str]:
    for told in split_problems(architecture, split.tp, 1, split.etp):
        yield f"{where}: {told}"
    counts = {layer.feed_forward.experts for layer in architecture.moe_layers()}  # type: ignore[union-attr]
    if not counts and split.ep * split.etp > 1:
        yield f"{where}.ep: found {split.ep} x {split.etp}, but {architecture.model_type} has no routed experts"
    if counts and split.tp > 1 and split.ep * split.etp == 1:
        yield (
            f"{where}.ep: found ep(1) * etp(1), and tp({split.tp}) ranks share experts by number or by width; "
            f"allowed: ep {split.tp} or etp {split.tp}"
        )
    if len(counts) > 1:
        yield f"model: layers with different expert counts ({sorted(counts)}) are not simulated yet"
    if split.pp > len(architecture.layers):
        yield f"{where}.pp: found {split.pp}, more than {len(architecture.layers)} layers"


def _exchange_problems(
    scenario: ServingScenario, where: str, split: ServingParallel, architecture: Architecture, cluster: Cluster
) -> Iterator[str]:
    """Of the ways of rows, where rows travel."""
    serving = scenario.serving
    if split.ep * split.etp <= split.tp:
        if serving.two_batch_overlap:
            yield "serving.two_batch_overlap: found true, but no rows are exchanged that it could hide; leave it out"
        yield from _idle_exchanges(scenario, where)
        return
    decodes = where == "parallel" and serving.requests.output_tokens != 1
    prefills = where != "parallel" or (serving.prefill is None and not serving.requests.prefilled)
    tokens = serving.prefill.max_batch_tokens if serving.prefill else serving.max_batch_tokens
    for field, name, most, used in (
        ("serving.exchange", serving.exchange, serving.max_sequences, decodes),
        ("serving.prefill_exchange", serving.prefill_exchange, tokens, prefills),
    ):
        if used:
            direct = scenario.cluster.gpu_direct
            yield from way_problems(name, architecture, cluster, split.ep, split.etp, gpu_direct=direct, field=field)
            yield from too_many_tokens(name, -(-most // split.tp), field)

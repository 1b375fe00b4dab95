"""The arithmetic that the numbers of a serving scenario must satisfy among themselves."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from simulator.documents import Document, Problem
from simulator.forecast.scenario_serving import ServingParallel, ServingScenario
from simulator.forecast.serving.request_traces import HASH_TOKENS


def serving_problems(document: Document[ServingScenario]) -> Iterator[Problem]:
    """Everything that does not go together, whatever model and machines are."""
    yield from _world_size(document)
    yield from _splits(document)
    yield from _requests(document)
    yield from _pools(document)
    yield from _caches(document)
    yield from _prompts(document)
    yield from _machines(document)
    yield from _routing(document)


def pools(scenario: ServingScenario) -> tuple[tuple[str, ServingParallel, int], ...]:
    """(dotted path, split, accelerators) of the accelerators that decode, and of those that prefill apart."""
    apart = scenario.serving.prefill
    others = apart.accelerators if apart else 0
    decode = ("parallel", scenario.parallel, scenario.cluster.accelerators - others)
    return (decode, ("serving.prefill.parallel", apart.parallel, others)) if apart else (decode,)


def _world_size(document: Document[ServingScenario]) -> Iterator[Problem]:
    apart = document.content.serving.prefill
    for where, split, accelerators in pools(document.content):
        product = split.dp_replicate * split.tp * split.pp
        if product == accelerators:
            continue
        arithmetic = f"dp_replicate({split.dp_replicate}) * tp({split.tp}) * pp({split.pp}) = {product}"
        whole = document.content.cluster.accelerators
        has = f"the cluster has {accelerators} accelerators"
        if apart and where == "parallel":
            has = f"{whole} accelerators less {apart.accelerators} for prefill are {accelerators}"
        elif apart:
            has = f"{accelerators} accelerators prefill"
        others = split.tp * split.pp
        ranks = [ranks for ranks in (max(0, accelerators) // others, max(0, accelerators) // others + 1) if ranks > 0]
        nearest = (
            f"dp_replicate {accelerators // others}"
            if accelerators > 0 and accelerators % others == 0
            else " or ".join(f"dp_replicate {count} on {count * others}" for count in ranks)
        )
        yield document.problem(f"{where}.dp_replicate", f"{arithmetic}, but {has}; nearest: {nearest}")


def _splits(document: Document[ServingScenario]) -> Iterator[Problem]:
    for where, split, _ in pools(document.content):
        ranks, sharing = split.dp_replicate * split.tp, split.ep * split.etp
        if sharing == 1:
            continue
        product = f"ep({split.ep}) * etp({split.etp}) = {sharing}"
        if ranks % sharing:
            told = f"dp_replicate({split.dp_replicate}) * tp({split.tp}) = {ranks}"
            message = f"{product}, which does not divide {told}; nearest: {gcd(ranks, sharing)} or {ranks}"
            yield document.problem(f"{where}.ep", message)
        elif sharing % split.tp:
            message = f"{product}, and tp({split.tp}) does not divide it; nearest: {ranks}"
            yield document.problem(f"{where}.ep", message)
        elif split.etp > 1 and sharing > split.tp:
            message = (
                f"{product}, more than tp({split.tp}): rows that travel to experts which ranks split by width are not "
                f"simulated; nearest: ep {sharing} with etp 1"
            )
            yield document.problem(f"{where}.etp", message)


def _requests(document: Document[ServingScenario]) -> Iterator[Problem]:
    asked, where = document.content.serving.requests, "serving.requests"
    given = asked.model_fields_set
    if asked.trace is not None:
        for name in ("prompt_tokens", "output_tokens", "least_share", "concurrency", "rate_per_s", "seed"):
            if name in given:
                yield document.problem(f"{where}.{name}", "found beside a trace, which says it; leave one out")
        return
    for name in ("prompt_tokens", "output_tokens"):
        if getattr(asked, name) is None:
            yield document.problem(f"{where}.{name}", "missing; allowed: with a trace alone")
    named = [name for name in ("concurrency", "rate_per_s") if getattr(asked, name) is not None]
    if len(named) != 1:
        found = " and ".join(named) or "neither"
        yield document.problem(where, f"found {found}; allowed: one of concurrency, rate_per_s and a trace")
    if "seed" in given and asked.least_share == 1.0 and asked.rate_per_s is None:
        yield document.problem(f"{where}.seed", "found, but neither lengths nor times are drawn; leave it out")


def _caches(document: Document[ServingScenario]) -> Iterator[Problem]:
    serving = document.content.serving
    if not serving.prefix_cache:
        return
    if serving.requests.trace is None:
        message = "true finds prompts by a trace's hash_ids, and there is none; allowed: requests.cached_share"
        yield document.problem("serving.prefix_cache", message)
    if serving.requests.cached_share:
        message = "found beside prefix_cache, which finds what is there; leave one out"
        yield document.problem("serving.requests.cached_share", message)
    if HASH_TOKENS % serving.block_tokens:
        message = f"found {serving.block_tokens}, which does not divide the {HASH_TOKENS} tokens of a hash; nearest: 16"
        yield document.problem("serving.block_tokens", message)


def _pools(document: Document[ServingScenario]) -> Iterator[Problem]:
    serving = document.content.serving
    asked = serving.requests
    if asked.prefilled:
        for name, found in (("cached_share", asked.cached_share), ("prefix_cache", serving.prefix_cache)):
            if found:
                where = f"serving.{'requests.' if name == 'cached_share' else ''}{name}"
                yield document.problem(where, "found beside prefilled, where whole prompts are; leave one out")
        if serving.prefill is not None:
            message = "found beside requests.prefilled, whose prompts come from elsewhere; leave one out"
            yield document.problem("serving.prefill", message)
        if asked.output_tokens == 1:
            message = "found 1, which prefill makes, and prompts are prefilled; allowed: 2 and more"
            yield document.problem("serving.requests.output_tokens", message)
    if serving.batching == "mixed" and serving.max_batch_tokens < serving.max_sequences:
        message = (
            f"found {serving.max_batch_tokens}, fewer than max_sequences({serving.max_sequences}), each of which "
            f"decodes a token; nearest: {serving.max_sequences}"
        )
        yield document.problem("serving.max_batch_tokens", message)


def _prompts(document: Document[ServingScenario]) -> Iterator[Problem]:
    """How prompts are computed, where they are, and beside what."""
    serving = document.content.serving
    if serving.requests.prefilled:
        for name in ("chunked_prefill", "prefill_code", "batch_wait", "front_end"):
            if name in serving.model_fields_set:
                message = "found beside requests.prefilled, whose prompts come computed; leave it out"
                yield document.problem(f"serving.{name}", message)
    if serving.batch_wait is None:
        return
    if serving.prefill is not None:
        message = "found beside serving.prefill: no sequences decode where prompts are computed; leave one out"
        yield document.problem("serving.batch_wait", message)
    if serving.batching == "prefill_first":
        message = "found beside batching: prefill_first, which takes prompts as they come; allowed: mixed"
        yield document.problem("serving.batch_wait", message)


def _machines(document: Document[ServingScenario]) -> Iterator[Problem]:
    cluster = document.content.cluster
    if cluster.memory_nodes:
        message = "memory that other nodes lend holds nothing that is served; leave it out"
        yield document.problem("cluster.memory_nodes", message)
    if cluster.degraded is not None and cluster.degraded.slow_nodes:
        message = "nodes of unlike pace are not simulated while serving; leave it out"
        yield document.problem("cluster.degraded.slow_nodes", message)


def _routing(document: Document[ServingScenario]) -> Iterator[Problem]:
    routing = document.content.routing
    named = [name for name in ("trace", "synthetic") if getattr(routing, name) is not None]
    if len(named) > 1:
        yield document.problem(f"routing.{named[-1]}", f"found {' and '.join(named)}; allowed: one of them")
    steps = "are of a step of training, and iterations of serving have none"
    for name in ("workload", "drift", "drift_between", "step"):
        if name in routing.model_fields_set:
            yield document.problem(f"routing.{name}", f"drifts and workloads {steps}; leave it out")
    if routing.policy is not None and routing.policy.replan_every is not None:
        yield document.problem("routing.policy.replan_every", f"plans that age {steps}; leave it out")

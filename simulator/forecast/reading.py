"""Reading a scenario: the file, the overrides, and the arithmetic that its numbers must satisfy among themselves.

What needs the model or the hardware to judge is checked where those are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.documents import Document, InvalidDocument, Problem, in_order, keys, read
from simulator.forecast.errors import Refused
from simulator.forecast.scenario import Recompute, Scenario
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving_problems import serving_problems
from simulator.shipped import exists, locate

_SUFFIXES = (".yaml", ".yml")


def read_scenario(name: str, overrides: Sequence[str] = ()) -> tuple[Scenario, Path]:
    """The scenario *name*, a path or the name of a shipped one, and the folder that its relative names start from.

    *overrides* are texts such as "parallel.ep=64". Raise :exc:`InvalidDocument` with all problems at once.
    """
    document, folder = open_scenario(name, overrides)
    return document.content, folder


def open_scenario(name: str, overrides: Sequence[str] = ()) -> tuple[Document[Scenario], Path]:
    """As :func:`read_scenario`, keeping the places of the values for :func:`placing`."""
    path = find_training(name, overrides)
    document = read(path, Scenario, overrides)
    _refuse(_problems(document))
    return document, path.parent


def open_any_scenario(
    name: str, overrides: Sequence[str] = ()
) -> tuple[Document[Scenario] | Document[ServingScenario], Path]:
    """As :func:`open_scenario`, of a scenario of training or of serving."""
    path = find_scenario(name)
    if not _serves(path, overrides):
        return open_scenario(name, overrides)
    document = read(path, ServingScenario, overrides)
    _refuse(serving_problems(document))
    return document, path.parent


def find_training(name: str, overrides: Sequence[str] = ()) -> Path:
    """As :func:`find_scenario`; one that serves is refused."""
    path = find_scenario(name)
    if _serves(path, overrides):
        message = "found, and training is asked about; allowed: fit, run, compare and validate"
        raise InvalidDocument([Problem(str(path), None, "serving", message)])
    return path


def _serves(path: Path, overrides: Sequence[str]) -> bool:
    """Whether a scenario is one of serving; one of both kinds is refused."""
    found = keys(path, overrides)
    if {"training", "serving"} <= found:
        message = "found beside training; allowed: one of them, what a scenario does"
        raise InvalidDocument([Problem(str(path), None, "serving", message)])
    return "serving" in found


def _refuse(problems: Iterable[Problem]) -> None:
    if found := in_order(problems):
        raise InvalidDocument(found)


@contextmanager
def placing(document: Document[Any]) -> Iterator[None]:
    """Turn a :exc:`Refused` of the block into an :exc:`InvalidDocument` that gives file and line of each value.

    Its messages start with the dotted path of the value: "parallel.ep: found 64, ...".
    """
    try:
        yield
    except Refused as error:
        raise InvalidDocument(in_order(_placed(document, message) for message in error.messages)) from None


def _placed(document: Document[Any], message: str) -> Problem:
    where, colon, rest = message.partition(": ")
    return document.problem(where, rest) if colon and " " not in where else document.problem("", message)


def find_scenario(name: str) -> Path:
    """The file that *name* means. What exists is taken as it is, so that reading it tells what is wrong with it; but a
    folder called as a shipped scenario, such as one that has its results, does not stand before it.
    """
    there = bool(name) and exists(Path(name))
    if there and not Path(name).is_dir():
        return Path(name)
    try:
        return locate(name, kind="scenario", folder=Path(), shipped_in=("scenarios",), suffixes=_SUFFIXES)
    except FileNotFoundError as error:
        if there:
            return Path(name)
        found = (
            Problem(name, None, "", "no such file") if name.endswith(_SUFFIXES) else Problem("", None, "", str(error))
        )
        raise InvalidDocument([found]) from None


def _problems(document: Document[Scenario]) -> Iterator[Problem]:
    yield from _world_size(document)
    yield from _expert_parallel(document)
    yield from _global_batch(document)
    yield from _lora_targets(document)
    yield from _recompute(document)
    yield from _routing(document)
    yield from _sequences(document)
    yield from _unequal_ranks(document)
    yield from _images(document)


def _world_size(document: Document[Scenario]) -> Iterator[Problem]:
    split, accelerators = document.content.parallel, document.content.cluster.accelerators
    degrees = {axis: getattr(split, axis) for axis in ("dp_replicate", "dp_shard", "tp", "cp", "pp")}
    others = split.dp_replicate * split.tp * split.cp * split.pp
    product = others * split.dp_shard
    if product == accelerators:
        return
    arithmetic = " * ".join(f"{axis}({degree})" for axis, degree in degrees.items())
    if accelerators % others == 0:
        nearest = f"dp_shard {accelerators // others}"
    else:
        shards = [shard for shard in (accelerators // others, accelerators // others + 1) if shard]
        nearest = " or ".join(f"dp_shard {shard} on {shard * others} accelerators" for shard in shards)
    message = f"{arithmetic} = {product}, but the cluster has {accelerators} accelerators; nearest: {nearest}"
    yield document.problem("parallel.dp_shard", message)


def _expert_parallel(document: Document[Scenario]) -> Iterator[Problem]:
    split = document.content.parallel
    ranks = split.dp_shard * split.cp * split.tp
    if ranks % (split.ep * split.etp) == 0:
        return
    divisors = [d for d in _divisors(ranks) if ranks % (d * split.etp) == 0] or [1]
    near = [*[d for d in divisors if d < split.ep][-1:], *[d for d in divisors if d > split.ep][:1]]
    times = f" * etp({split.etp}) = {split.ep * split.etp}" if split.etp > 1 else ""
    message = (
        f"found {split.ep}{times}, which does not divide dp_shard({split.dp_shard}) * cp({split.cp}) * tp({split.tp}) "
        f"= {ranks}; nearest: {' or '.join(map(str, near))}"
    )
    yield document.problem("parallel.ep", message)


def _global_batch(document: Document[Scenario]) -> Iterator[Problem]:
    split, training = document.content.parallel, document.content.training
    once = split.dp_replicate * split.dp_shard * training.micro_batch_sequences
    rounds, rest = divmod(training.global_batch_sequences, once)
    if rest == 0:
        return
    nearest = " or ".join(str(count * once) for count in (rounds, rounds + 1) if count)
    message = (
        f"found {training.global_batch_sequences}, which is no multiple of dp_replicate({split.dp_replicate}) * "
        f"dp_shard({split.dp_shard}) * micro_batch_sequences({training.micro_batch_sequences}) "
        f"= {once}; nearest: {nearest}"
    )
    yield document.problem("training.global_batch_sequences", message)


def _lora_targets(document: Document[Scenario]) -> Iterator[Problem]:
    lora = document.content.training.lora
    targets = lora.targets if lora else ()
    twice = [target for target in dict.fromkeys(targets) if targets.count(target) > 1]
    if twice:
        yield document.problem("training.lora.targets", f"found {', '.join(twice)} more than once; allowed: once each")


def _recompute(document: Document[Scenario]) -> Iterator[Problem]:
    asked = document.content.training.recompute
    if not isinstance(asked, Recompute):
        return
    named = [name for name in ("every", "keep", "modules") if getattr(asked, name)]
    if len(named) != 1:
        message = f"found {' and '.join(named) or 'none of them'}; allowed: one of every, keep and modules"
        yield document.problem(f"training.recompute{'.' + named[-1] if named else ''}", message)
    twice = [module for module in dict.fromkeys(asked.modules) if asked.modules.count(module) > 1]
    if twice:
        yield document.problem("training.recompute.modules", f"found {', '.join(twice)} more than once; allowed: once")


def _routing(document: Document[Scenario]) -> Iterator[Problem]:
    routing = document.content.routing
    named = [name for name in ("trace", "synthetic", "workload") if getattr(routing, name) is not None]
    if len(named) > 1:
        message = f"found {' and '.join(named)}; allowed: one of trace, synthetic and workload"
        yield document.problem(f"routing.{named[-1]}", message)
    yield from _drift(document)


def _drift(document: Document[Scenario]) -> Iterator[Problem]:
    routing, sequences = document.content.routing, document.content.training.sequences
    still = routing.workload is None and routing.drift is None
    if still and "step" in routing.model_fields_set:
        yield document.problem("routing.step", "found a step without a workload or drift; leave it out")
    if routing.drift == "recorded" and routing.trace is None:
        yield document.problem("routing.drift", "found recorded, but no trace; allowed: a law, or a trace beside it")
    if routing.drift is not None and routing.workload is not None:
        message = "found a drift beside a workload, which has steps of its own; leave one out"
        yield document.problem("routing.drift", message)
    if routing.drift_between == "micro_batches":
        if routing.drift is None:
            yield document.problem("routing.drift_between", "found micro_batches without a drift; leave it out")
        if sequences is not None:
            message = "found micro_batches beside training.sequences, which make them unlike; allowed: steps"
            yield document.problem("routing.drift_between", message)
    if routing.policy is not None and routing.policy.replan_every is not None:
        where = "routing.policy.replan_every"
        if still:
            yield document.problem(where, "popularity stands still, so plans do not age; leave it out, or add a drift")
        if routing.policy.planned_on is not None:
            yield document.problem(where, "found beside planned_on, which fixes the plan; leave one out")


def _unequal_ranks(document: Document[Scenario]) -> Iterator[Problem]:
    """What does not go together with ranks that have sequences of their own."""
    training, split = document.content.training, document.content.parallel
    asked, ragged = training.sequences, document.content.routing.workload == "W4_source_ragged"
    if asked is None and not ragged:
        return
    told = "sources are ragged" if ragged else "sequences are told apart"
    for axis in ("tp", "cp", "etp"):
        degree = getattr(split, axis)
        if degree > 1:
            message = f"found {degree}, whose ranks share sequences, and {told}; allowed: 1"
            yield document.problem(f"parallel.{axis}", message)
    if not ragged and asked is not None and asked.lengths is None and training.images is None:
        return
    if split.pp > 1:
        message = f"found {split.pp}, whose stages hand over as much for every rank, and {told}; allowed: 1"
        yield document.problem("parallel.pp", message)
    if training.document_length is not None:
        message = f"cuts all sequences alike, and {told}; leave it out"
        yield document.problem("training.document_length", message)
    if training.exchange != "all_to_all":
        message = f"found {training.exchange}, known of ranks that send as much, and {told}; allowed: all_to_all"
        yield document.problem("training.exchange", message)


def _sequences(document: Document[Scenario]) -> Iterator[Problem]:
    training = document.content.training
    asked = training.sequences
    if asked is None:
        return
    if asked.lengths is None and asked.domains == 1 and training.images is None:
        message = "tells nothing apart; allowed: lengths, or domains from 2 on, or images in the sequences"
        yield document.problem("training.sequences", message)
    if "spread" in asked.model_fields_set and asked.domains == 1:
        yield document.problem("training.sequences.spread", "found with one domain; allowed: domains from 2 on")
    longest = max(asked.lengths or (0,))
    if longest > training.sequence_length:
        message = f"found {longest}, longer than sequence_length({training.sequence_length}); allowed: up to that"
        yield document.problem("training.sequences.lengths", message)
    if training.images is not None and training.images.even:
        message = "found beside sequences told apart; leave it out, or take the policy data_sampling"
        yield document.problem("training.images.even", message)
    if document.content.routing.workload is not None:
        message = "found beside a workload, which has tokens of its own; leave one out"
        yield document.problem("training.sequences", message)


def _images(document: Document[Scenario]) -> Iterator[Problem]:
    training = document.content.training
    images = training.images
    if images is None:
        return
    named = [name for name in ("per_sequence", "synthetic") if getattr(images, name) is not None]
    if len(named) != 1:
        found = " and ".join(named) or "neither"
        yield document.problem("training.images", f"found {found}; allowed: one of per_sequence and synthetic")
    if images.per_sequence is not None and not any(images.per_sequence):
        yield document.problem("training.images.per_sequence", "found no image at all; leave training.images out")
    if images.frozen and training.lora is not None:
        message = "with training.lora all base weights are frozen, the tower's and the projector's too; leave it out"
        yield document.problem("training.images.frozen", message)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})

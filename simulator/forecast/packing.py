"""Documents packed into sequences: attention and linear attention's state never cross from one into the next."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario, Training


def sequence_lengths(training: Training) -> tuple[int, ...]:
    """Lengths in tokens of what attends to itself in one micro-batch: its sequences, or the documents in them."""
    whole, document = training.sequence_length, training.document_length or training.sequence_length
    full, rest = divmod(whole, document)
    return ((document,) * full + ((rest,) if rest else ())) * training.micro_batch_sequences


def packing_problems(scenario: Scenario) -> Iterator[str]:
    """What documents do not go together with."""
    training, cp = scenario.training, scenario.parallel.cp
    found = training.document_length
    if found is None:
        return
    where = f"training.document_length: found {found}"
    if found > training.sequence_length:
        yield f"{where}, longer than the sequence of {training.sequence_length} tokens; allowed: up to that"
    if cp > 1:
        yield f"{where} with cp {cp}: documents are not cut between context-parallel ranks; allowed: cp 1"
    if training.attention == "unfused":
        yield f"{where}, but attention over scores in memory sees whole sequences; allowed: flash"

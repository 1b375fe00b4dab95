"""Documents packed into sequences: attention and linear attention's state never cross from one into the next."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario, Training


def sequence_lengths(training: Training) -> tuple[int, ...]:
    """Lengths in tokens of what attends to itself in one micro-batch: its sequences, or the documents in them."""
    return documents(training, training.sequence_length) * training.micro_batch_sequences


def documents(training: Training, length: int) -> tuple[int, ...]:
    """Lengths of the documents in a sequence of *length* tokens."""
    document = training.document_length or length
    full, rest = divmod(length, document)
    return (document,) * full + ((rest,) if rest else ())


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

"""How a rank batches, and what it does in the next iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.forecast.serving.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """How a rank batches."""

    max_sequences: int
    max_batch_tokens: int
    mixed: bool
    """Prompts beside decoding sequences, or in iterations of their own."""
    reserves: bool = False
    """Whether the blocks of the longest answer are set aside for it."""
    chunked: bool = True
    """Whether an iteration takes a part of a prompt that it has no room for; else the prompt waits for one that has."""
    wait_iterations: int = 0
    """That prompts wait at most for others while sequences decode."""
    wait_share: float = 1.0
    """Of the tokens of an iteration: as many end the waiting."""


@dataclass(slots=True)
class Plan:
    """One iteration of a rank."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """Tokens that prompts compute."""
    decodes: bool = False
    """Whether the decoding sequences take part."""
    refused: bool = False
    """Whether the first of the queue found no room."""
    waits: bool = False
    """Whether prompts could be computed and wait for others."""
    loaded_s: float = 0.0
    """Seconds in which caches come up from lower tiers for it."""

"""A recording of expert routing as files have it: a stream of small batches that can be gone through again and
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.documents import Problem
from simulator.routing.error import RoutingError
from simulator.routing.table import FloatArray, IntArray

Hear = Callable[[float], None]
"""Is told the share of the files that has been read, 0 to 1."""


def unheard(share: float) -> None:
    """For those who do not want to know *share*."""


MAX_EXPERTS = 10_000
MAX_LAYERS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What tokens of one source rank chose in one layer and step: *picks*, *counts*, or both."""

    layer: int
    """Number of the layer in the recorded model."""
    step: int = 0
    source: int = 0
    """Rank that the tokens were on."""
    picks: IntArray | None = None
    """Experts of each token, [tokens, top_k]; -1 where a token has fewer."""
    counts: IntArray | FloatArray | None = None
    """How often each expert was chosen, [experts]; where absent, as the picks say."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One recording, of one file or of a folder with a file per rank."""

    name: str
    batches: Callable[[Hear], Iterator[Batch]]
    """Reads the files once; raises :exc:`RoutingError` where they are not what they should be."""
    source: str = ""
    """Where the recording comes from, if the file says so."""
    numbered: bool = True
    """Whether layer numbers are those of the model; else they only count the recorded layers."""
    experts: int = 0
    """Experts of a layer, where known beforehand; else there are as many as the highest that is chosen."""


def joint_name(files: list[Path]) -> str:
    """The name of one file, or of the folder of many."""
    return files[0].stem if len(files) == 1 else files[0].resolve().parent.name


def refuse(file: Path, message: str, line: int | None = None, where: str = "") -> RoutingError:
    """The error that *file* cannot be used, for the reason in *message*."""
    return RoutingError([Problem(str(file), line, where, message)])


def check_picks(picks: IntArray, file: Path, where: str) -> IntArray:
    """*picks*, when they are [tokens, top_k] experts, none negative but -1, and none too large."""
    if picks.ndim != 2 or picks.dtype.kind not in "iu":
        found = f"found {picks.dtype} of shape {picks.shape}"
        raise refuse(file, f"{found}, expected whole numbers of shape (tokens, experts of a token)", where=where)
    if picks.size and not (picks.min() >= -1 and picks.max() < MAX_EXPERTS):
        found = f"found experts from {picks.min()} to {picks.max()}"
        raise refuse(file, f"{found}, expected 0 to {MAX_EXPERTS - 1}, or -1 for none", where=where)
    return picks


def check_counts(counts: FloatArray | IntArray, file: Path, where: str, most: float) -> FloatArray | IntArray:
    """*counts*, when no entry is negative, not a number, or above *most*, and there are not too many experts."""
    if counts.shape[-1] > MAX_EXPERTS:
        raise refuse(file, f"found {counts.shape[-1]} experts, expected at most {MAX_EXPERTS}", where=where)
    if counts.size and not (counts.min() >= 0 and counts.max() <= most):
        found = f"found counts from {counts.min():g} to {counts.max():g}"
        raise refuse(file, f"{found}, expected 0 to {most:g}", where=where)
    return counts

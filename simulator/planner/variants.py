"""Variants of splits: the schedules that a pipeline may run, and the ways in which rows may find their experts.

Which of them a split has follows from the same rules as in a scenario (`forecast/pipelining.py`,
`forecast/exchanging.py`): a variant that a scenario would refuse is no candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.planner.splits import NO_OVERLAP, SCHEDULES, WAYS, Splits

Mask = npt.NDArray[np.bool_]
CHUNKS = (2, 3, 4)
"""Virtual stages of a stage that are tried beside one and the scenario's own."""
_PLAIN, _LATER, _MIRRORED, _ALL_FIRST = range(len(SCHEDULES))


@dataclass(frozen=True, slots=True)
class Room:
    """What a job leaves to its schedule and its exchanges."""

    layers: int
    chunks: int
    """Virtual stages of a stage as the scenario has them."""
    batch: int
    """Sequences of a step."""
    all_first: bool
    """Whether the scenario asks for GPipe, which is tried then: it takes as long as 1F1B and more memory."""
    later_weights: bool
    """Whether gradients of weights may be put off."""
    mirrored: bool
    """Whether two models in opposite directions are possible."""
    overlap: int
    """How exchanges may run beside the other pass."""
    way: Callable[[str, int, int, int, int, int], bool]
    """Whether a way of exchange goes with tp, cp, sequences of a micro-batch, ep and etp."""


def varied(splits: Splits, room: Room) -> Splits:
    """*splits* of plain 1F1B with one all-to-all, and all variants of each."""
    scheduled = Splits.joined([splits, *_schedules(splits, room)])
    return Splits.joined([scheduled, *_ways(scheduled, room)])


def _schedules(splits: Splits, room: Room) -> list[Splits]:
    stages, chunked = splits["pp"], []
    once = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
    micro_batches, whole = room.batch // once, splits["zero"] == 1
    may_overlap = whole & (splits["ep"] > 1) & (room.overlap != NO_OVERLAP)
    for chunks in sorted({*CHUNKS, room.chunks} - {1}):
        possible = (stages > 1) & (stages * chunks <= room.layers) & (micro_batches % stages == 0)
        chunked += [
            splits.only(possible).set(virtual_pipeline=chunks),
            splits.only(possible & may_overlap).set(virtual_pipeline=chunks, overlap=room.overlap),
        ]
    found = [splits.only(may_overlap & (stages == 1) & (micro_batches > 1)).set(overlap=room.overlap), *chunked]
    if room.all_first:
        found.append(splits.only(stages > 1).set(schedule=_ALL_FIRST))
    if room.later_weights:
        found.append(splits.only(whole & (stages > 1)).set(schedule=_LATER))
    if room.later_weights and room.mirrored:
        even = (stages % 2 == 0) & (micro_batches % 2 == 0) & (micro_batches >= 2 * stages)
        found += [
            splits.only(whole & even).set(schedule=_MIRRORED),
            splits.only(whole & even & may_overlap).set(schedule=_MIRRORED, overlap=room.overlap),
        ]
    return found


def _ways(splits: Splits, room: Room) -> list[Splits]:
    """Ways other than the plain one, where experts are on several ranks."""
    keys, which = splits.numbered("tp", "cp", "micro_batch_sequences", "ep", "etp")
    found = []
    for number, way in enumerate(WAYS):
        if way == "all_to_all":
            continue
        possible = np.array([key[3] > 1 and room.way(way, *key) for key in keys], bool)
        found.append(splits.only(possible[which]).set(exchange=number))
    return found

"""What node and fabric files made from a topology have in common: entries with their source, and the comment on top."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.hardware.topology import Topology
from simulator.units import human_bytes, human_rate


class CannotProfileError(ValueError):
    """A topology that no node or fabric file can be made of; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure to write."""

    value: str | float
    source: str
    grade: str

    def __str__(self) -> str:
        return f"{{value: {json.dumps(self.value)}, source: {json.dumps(self.source)}, grade: {self.grade}}}"


def comment(topology: Topology, dump: str, remarks: Iterable[str] = ()) -> list[str]:
    """Lines on top of a file: what it comes from, what the dump does not tell, what was taken for granted."""
    lines = [f"Imported from {dump} ({topology.format}) by rackcast topo."]
    lines += [f"Not told: {sentence}." for sentence in topology.unknown]
    lines += [f"Taken so: {sentence}." for sentence in (*topology.assumed, *remarks)]
    return [f"# {line}" for line in lines]


def written(value: float, unit: str) -> str | float:
    """*value* for a file: with its unit (B, B/s or s), or the plain number of a share where *unit* is empty."""
    if unit == "B/s":
        return human_rate(value)
    if unit == "B":
        return human_bytes(value)
    return f"{value * 1e6:.6g} us" if unit == "s" else value

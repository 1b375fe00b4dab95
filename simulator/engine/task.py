"""Tasks: the engine's input language.

A program is a list of tasks in the order in which the host issues them. Each task occupies one stream; a stream runs
its tasks in that order, one at a time. A task starts when the host has issued it, its stream is free and the tasks it
depends on have finished. Durations and bytes are scalars, or vectors with one entry per *behaviour* (a set of ranks
that do exactly the same, see `parallel/folding.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.int64]
Quantity = float | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """What makes a task a collective: members wait for each other, then share the links.

    The transfer of every group of the operation is one *wave*: its groups start each at its own time, and the wave
    as a whole competes with other waves for the links.
    """

    communicator: str
    """Name of the set of groups, such as the mesh axis they lie along."""
    groups: Vector
    """Group number of each behaviour; those with equal numbers wait for each other."""
    link_busy_ns: Mapping[str, float] = field(default_factory=dict)
    """For each class of links, how long the wave keeps its busiest link at work when alone."""
    wire_bytes: Quantity = 0.0
    """Bytes that each behaviour sends."""
    meeting: str = ""
    """A name that tasks of several parts share when they are one collective: a send and its receive, say."""
    compute_taken: Quantity = 0.0
    """Share of the compute units that it occupies while it is under way, so that compute beside it slows down; copy
    engines leave them alone."""
    parts: tuple[int, ...] = ()
    """The parts that meet. Both sides have equal behaviours and groups; the lowest part tells the links' use."""


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory taken when a task is issued, until a later task (or the same) releases *key*.

    Nobody changes one; but a program has hundreds of thousands, and a frozen one takes five times as long to make.
    """

    key: str
    kind: str
    """What it is: parameters, gathered parameters, saved activations, ..."""
    bytes: Quantity
    tier: str = "hbm"
    pieces: tuple[Quantity, ...] = ()
    """Sizes of the tensors that it consists of, where it is more than one. They may add up to more than *bytes*, which
    is what is held at once."""
    pool: str = "compute"
    """The stream whose memory it comes from: caching allocators keep each stream's apart."""


@dataclass(slots=True, eq=False)
class Task:
    """One thing that a stream does."""

    name: str
    stream: str
    kind: str
    duration_ns: int | Vector
    """Time that it takes alone, once started."""
    deps: tuple[int, ...] = ()
    """Positions in the program of tasks that must have finished."""
    host_ns: int = 0
    """Time that the host needs to issue it."""
    collective: Collective | None = None
    blocks_host: bool = False
    """The host waits for this task to finish before it issues the next one."""
    allocates: tuple[Allocation, ...] = ()
    releases: tuple[str, ...] = ()
    """Keys released when the task is done, as the host sees it: in program order."""
    phase: str = ""
    layer: int = -1
    micro_batch: int = -1
    grade: str = "assumed"
    """Where its duration comes from: measured, scaled, datasheet or assumed."""
    algorithms: tuple[str, ...] = ()
    """How a library runs it, for those who ask; its duration says what that costs."""

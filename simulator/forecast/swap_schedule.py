"""The schedule of a swap: which results stay on the card, which go to the host, and which are computed again.

A mixed-integer programme over counts of layers, solved by HiGHS (`scipy.optimize.milp`). It takes the prices of the
operators: what running again without some of them saves, against the memory that is free on the card and in the node,
and the time in which copies have the card's link. A copy beside an exchange that crosses the same link holds it up,
so it costs its own time by the share of the pass that such exchanges take. Tensors of more sizes fragment the
allocator's pools in ways that no sum tells: the replayed allocator says whether a choice fits with room to spare, less
room is given until it does, and the engine runs what fits beside the greedy choice and beside none: the fastest is
taken. Copies that the programme thinks hidden may stall all the same; the forecast of the choice says so.

    most of   sum of y(step) * time(step) - sum of host(o) * bytes(o) * (share_out / rate_out + share_in / rate_in)
    with      y(step) <= sum of (host(o) + card(o)) / layers(o) over the results o that spare the step, y <= 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from simulator.engine.simulation import Part, Simulation
from simulator.forecast.memory import room_bytes
from simulator.model.recompute import LAYER_INPUT
from simulator.program.job import Job
from simulator.program.stage import StageProgram
from simulator.program.swap import Swap
from simulator.program.swap_candidates import Candidate, Window, candidates, window
from simulator.program.training_step import TrainingStep

JUDGED = 1
"""Micro-batches that the engine runs of each choice."""
MOST_ROUNDS = 5
ROOM = 0.01
"""Share of the card's memory that is left free beyond what the allocator reserves."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free, a card."""

    card: float
    host: float


def schedule(job: Job, names: Sequence[str]) -> Swap:
    """The swap of *job*, which recomputes whole layers and has one stage, among operators of these *names*."""
    lowering = TrainingStep(job)
    layers = lowering.layer_steps(0)
    found = candidates(layers, job.architecture.layers, names)
    passes = window(layers, job.architecture.layers, job.cluster)
    none = _Tried(job, lowering.programs(JUDGED))
    room = none.room()
    choosers = [partial(choose, found, passes) for choose in (_solved, _greedy)]
    tried = {Swap(): none} | dict(_that_fit(none, room, choose) for choose in choosers)
    return min(tried, key=lambda choice: tried[choice].ran_ns()) if len(tried) > 1 else Swap()


@dataclass(frozen=True, slots=True)
class _Tried:
    """A choice, lowered."""

    job: Job
    programs: tuple[StageProgram, ...]

    def room(self) -> Room:
        """What it leaves; below zero, what is missing."""
        card, node = room_bytes(self.programs, self.job.cluster, self.job.folding)
        return Room(card - ROOM * self.job.cluster.accelerator.hbm_capacity_bytes, node)

    def ran_ns(self) -> int:
        """How long the engine takes for it."""
        parts = [Part(program.tasks, self.job.folding.behaviours) for program in self.programs]
        return max(recording.step_ns for recording in Simulation(*parts).run())


def _that_fit(none: _Tried, room: Room, choose: Callable[[Room], Swap]) -> tuple[Swap, _Tried]:
    """What *choose* makes of the *room* that *none* leaves, with less of it until the allocator agrees."""
    for _ in range(MOST_ROUNDS):
        choice = choose(room)
        if not choice:
            break
        chosen = replace(none.job, swap=choice)
        tried = _Tried(chosen, TrainingStep(chosen).programs(JUDGED))
        left = tried.room()
        if left.card >= 0 and left.host >= 0:
            return choice, tried
        room = Room(room.card + min(0.0, left.card), room.host + min(0.0, left.host))
    return Swap(), none


def _swap(found: Sequence[Candidate], host: Iterable[float], card: Iterable[float]) -> Swap:
    """The choice of so many layers of each candidate."""
    shares = [
        {one.name: round(float(n)) / one.layers for one, n in zip(found, counts, strict=True) if round(float(n))}
        for counts in (host, card)
    ]
    return Swap(host=shares[0], card=shares[1])


def _solved(found: Sequence[Candidate], window: Window, room: Room) -> Swap:
    """By the programme: variables are host and card counts of each candidate, then the share of each step spared."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    steps = sorted({step for one in found for step in one.spares})
    n, m = len(found), len(steps)
    layers = np.array([one.layers for one in found], np.float64)
    per_layer = np.array([one.bytes / one.layers for one in found])
    input_ = np.array([one.name == LAYER_INPUT for one in found])
    seconds = np.array([window.step_s[step] for step in steps])
    held = (Swap().in_flight + Swap().prefetch) / layers - input_
    nothing = np.zeros(m)
    rows = [
        (np.concatenate([held * per_layer, per_layer, nothing]), room.card),
        (np.concatenate([per_layer, np.zeros(n), nothing]), room.host),
        (np.concatenate([per_layer / window.out_bytes_per_s, np.zeros(n), nothing]), window.free_out_s),
        (np.concatenate([per_layer / window.in_bytes_per_s, np.zeros(n), seconds]), window.free_in_s),
    ]
    for number, one in enumerate(found):
        rows.append((_unit(2 * n + m, number, n + number), float(one.layers)))
    for number, step in enumerate(steps):
        row = _unit(2 * n + m, 2 * n + number)
        for place, one in enumerate(found):
            if step in one.spares:
                row[[place, n + place]] = -1 / one.layers
        rows.append((row, 0.0))
    most = np.concatenate([layers, np.where(input_, 0, layers), np.ones(m)])
    cost = np.concatenate([per_layer * window.cost_s_per_byte, np.zeros(n), -seconds])
    matrix, limits = np.stack([row for row, _ in rows]), np.array([limit for _, limit in rows])
    integral = np.concatenate([np.ones(2 * n), np.zeros(m)])
    answer = milp(
        cost, integrality=integral, bounds=Bounds(0, most), constraints=LinearConstraint(matrix, -np.inf, limits)
    )
    return _swap(found, answer.x[:n], answer.x[n : 2 * n]) if answer.x is not None else Swap()


def _unit(size: int, *places: int) -> npt.NDArray[np.float64]:
    row = np.zeros(size)
    row[list(places)] = 1.0
    return row


def _greedy(found: Sequence[Candidate], window: Window, room: Room) -> Swap:
    """By what a byte saves: on the card while there is room, then to the host while copies pay and are hidden."""
    host, card, spared = [0.0] * len(found), [0.0] * len(found), set[tuple[int, int]]()
    left, out_s, in_s, host_left = room.card, window.free_out_s, window.free_in_s, room.host
    for number in sorted(range(len(found)), key=lambda n: -window.saved_s(found[n]) / found[n].bytes):
        one = found[number]
        gain_s = sum(window.step_s[step] for step in one.spares - spared)
        if not gain_s:
            continue
        size = one.bytes / one.layers
        card[number] = float(min(one.layers, max(0, left // size)))
        left -= card[number] * size
        if gain_s > one.bytes * window.cost_s_per_byte:
            most = min(out_s * window.out_bytes_per_s, in_s * window.in_bytes_per_s, host_left) // size
            host[number] = float(max(0, min(one.layers - card[number], most)))
            out_s -= host[number] * size / window.out_bytes_per_s
            in_s -= host[number] * size / window.in_bytes_per_s
            host_left -= host[number] * size
        if card[number] + host[number]:
            spared |= one.spares
    return _swap(found, host, card)

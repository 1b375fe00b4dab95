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

import numpy as np
import numpy.typing as npt

from simulator.engine.simulation import Part, Simulation
from simulator.forecast.memory import fits, room_bytes
from simulator.model.recompute import LAYER_INPUT
from simulator.program.job import Job
from simulator.program.schedules import in_flight, schedules
from simulator.program.stage import StageProgram
from simulator.program.swap import Swap
from simulator.program.swap_candidates import Candidate, Window, candidates, window
from simulator.program.training_step import TrainingStep

MOST_ROUNDS = 5
ROOM = 0.01
"""Share of the card's memory that is left free beyond what the allocator reserves."""
Choose = Callable[[Sequence[Candidate], Window, "Room"], Swap]


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free, a card."""

    card: float
    host: float
    held: float = 1.0
    """Micro-batches whose tensors are there at once."""

    def without(self, left: Room) -> Room:
        """What is to be given to a choice that should fit, where one that was given this has *left* less than none."""
        return replace(self, card=self.card + min(0.0, left.card), host=self.host + min(0.0, left.host))


def schedule(job: Job, names: Sequence[str], micro_batches: int) -> tuple[Swap, ...]:
    """The swap of each stage of *job*, which recomputes whole layers and has so many *micro_batches*, among operators
    of these *names*; nothing where none is faster.
    """
    lowering = TrainingStep(job)
    held = lowering.held_at_once(micro_batches)
    none = _Tried.of(job, lowering, held, min(micro_batches, held + lowering.round))
    offers = [_Offer.of(job, lowering, stage, names) for stage in range(lowering.stages)]
    rooms = [replace(room, held=held_at_most(job, stage, micro_batches)) for stage, room in enumerate(none.left)]
    tried = [none, *(_tried(none, rooms, offers, choose) for choose in (_solved, _greedy))]
    fitting = [one for one in tried if one.least_bytes >= 0]
    if not fitting:
        tried.append(none.swapping(tuple(_smallest(offer.found) for offer in offers)))
        fitting = [one for one in tried if fits(one.programs, job.cluster, job.folding)]
    # Where nothing fits, what leaves most is nearest to it.
    best = min(fitting, key=_Tried.ran_ns) if fitting else max(tried, key=lambda one: one.least_bytes)
    return best.job.swaps


def held_at_most(job: Job, stage: int, micro_batches: int) -> float:
    """Micro-batches that *stage* is between forward and backward pass of, at most and in all its layers, where a step
    has so many of those that go together.
    """
    chunks = job.pipeline.chunks
    passes = schedules()[job.schedule](stage, job.mesh.pp, micro_batches, chunks)
    return job.together * sum(in_flight(passes)) / chunks


@dataclass(frozen=True, slots=True)
class _Offer:
    """What there is to choose from on a stage."""

    found: Sequence[Candidate]
    window: Window

    @classmethod
    def of(cls, job: Job, lowering: TrainingStep, stage: int, names: Sequence[str]) -> _Offer:
        layers, makes = lowering.layer_steps(stage), job.layers_of(stage)
        return cls(candidates(layers, makes, names), window(layers, makes, job.cluster))


@dataclass(frozen=True, slots=True)
class _Tried:
    """A choice, lowered."""

    job: Job
    lowering: TrainingStep
    programs: tuple[StageProgram, ...]
    """With as many micro-batches as are held at once."""
    most: int
    """Micro-batches that hold as much as any number of them: beside those, the gradients of earlier ones."""
    left: tuple[Room, ...]
    """What it leaves on each stage; below zero, what is missing."""

    @classmethod
    def of(cls, job: Job, lowering: TrainingStep, held: int, most: int) -> _Tried:
        """The choice of *job*, with *held* micro-batches, and with *most* of them too if those leave room."""
        programs = lowering.programs(held)
        left = _left(programs, job)
        if _least(left) >= 0:
            left = _left(lowering.programs(most), job)
        return cls(job, lowering, programs, most, left)

    def swapping(self, swaps: tuple[Swap, ...]) -> _Tried:
        """Another choice for the same job, with as many micro-batches."""
        job, held = replace(self.job, swaps=swaps), len(self.programs[0].micro_batch_ends)
        return _Tried.of(job, TrainingStep(job, self.lowering), held, self.most)

    @property
    def least_bytes(self) -> float:
        """What is left where least is."""
        return _least(self.left)

    def ran_ns(self) -> int:
        """How long the engine takes for it."""
        parts = [Part(program.tasks, self.job.folding.behaviours) for program in self.programs]
        return max(recording.step_ns for recording in Simulation(*parts).run())


def _tried(none: _Tried, rooms: list[Room], offers: Sequence[_Offer], choose: Choose) -> _Tried:
    """What *choose* makes of the *rooms* that *none* leaves, with less of them until the allocator agrees; else what
    leaves most.
    """
    best = none
    for _ in range(MOST_ROUNDS):
        choice = tuple(choose(offer.found, offer.window, room) for offer, room in zip(offers, rooms, strict=True))
        if not any(choice):
            break
        tried = none.swapping(choice)
        if tried.least_bytes >= 0:
            return tried
        best = max(best, tried, key=lambda one: one.least_bytes)
        rooms = [room.without(one) for room, one in zip(rooms, tried.left, strict=True)]
    return best


def _smallest(found: Sequence[Candidate]) -> Swap:
    """What takes least of a card: nothing is kept there but what comes into layers that are at work."""
    return Swap(host={LAYER_INPUT: 1.0} if any(one.name == LAYER_INPUT for one in found) else {})


def _left(programs: Sequence[StageProgram], job: Job) -> tuple[Room, ...]:
    cards, node = room_bytes(programs, job.cluster, job.folding)
    return tuple(Room(card - ROOM * job.cluster.accelerator.hbm_capacity_bytes, node) for card in cards)


def _least(left: Iterable[Room]) -> float:
    return min(min(room.card, room.host) for room in left)


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
    under_way = (Swap().in_flight + Swap().prefetch) / layers - room.held * input_
    nothing = np.zeros(m)
    rows = [
        (np.concatenate([under_way * per_layer, room.held * per_layer, nothing]), room.card),
        (np.concatenate([room.held * per_layer, np.zeros(n), nothing]), room.host),
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
        held = room.held * size
        card[number] = float(min(one.layers, max(0, left // held)))
        left -= card[number] * held
        if gain_s > one.bytes * window.cost_s_per_byte:
            most = min(out_s * window.out_bytes_per_s // size, in_s * window.in_bytes_per_s // size, host_left // held)
            host[number] = float(max(0, min(one.layers - card[number], most)))
            out_s -= host[number] * size / window.out_bytes_per_s
            in_s -= host[number] * size / window.in_bytes_per_s
            host_left -= host[number] * held
        if card[number] + host[number]:
            spared |= one.spares
    return _swap(found, host, card)

"""What could be swapped of a stage, in numbers: bytes of results, seconds that running again without them spares, and
the time and rate that copies have in each pass.

Times are those of the slowest behaviour, one kernel and transfer after the other; waiting is the engine's to find.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.engine.task import Quantity, Vector
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Layer
from simulator.model.recompute import LAYER_INPUT
from simulator.program.batch_steps import LayerSteps
from simulator.program.costs import Priced
from simulator.program.host_memory import COPY_OUT
from simulator.program.keeping import idle
from simulator.program.network import Transfer
from simulator.program.step import Step

At = tuple[int, int]
"""A step: the make of its layer, by number, and its position."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The result of one operator, in all layers that have it."""

    name: str
    layers: int
    bytes: float
    """In all those layers."""
    spares: frozenset[At]
    """Steps that need not run again where it is kept."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a micro-batch's passes leave to copies."""

    step_s: Mapping[At, float]
    """What running a step again takes, in all layers of its make."""
    out_bytes_per_s: float
    in_bytes_per_s: float
    free_out_s: float
    """Time of the forward pass in which no port uses the card's link."""
    free_in_s: float
    """The same of the backward pass, with all that runs again."""
    cost_s_per_byte: float
    """What a byte out and back takes from exchanges that cross the same link."""

    def saved_s(self, one: Candidate) -> float:
        """What *one* spares by itself."""
        return sum(self.step_s[step] for step in one.spares)


def candidates(layers: Sequence[LayerSteps], makes: Sequence[Layer], names: Sequence[str]) -> list[Candidate]:
    """Those of *names* whose results save anything when kept; *makes* are the layers' descriptions."""
    members = _members(layers, makes)
    found = []
    for name in names:
        places = [
            (make, position)
            for make, numbers in enumerate(members)
            for position, step in enumerate(layers[numbers[0]].steps)
            if step.name == name and position < _stop(layers[numbers[0]])
        ]
        count = sum(len(members[make]) for make, _ in places)
        size = sum(_most(layers[n].steps[position].output_bytes) for make, position in places for n in members[make])
        if count and size:
            spares = {
                (make, n) for make, position in places for n in (position, *_idle(layers[members[make][0]], position))
            }
            found.append(Candidate(name, count, size, frozenset(spares)))
    if LAYER_INPUT in names:
        size = sum(_most(layer.steps[0].output_bytes) for layer in layers)
        found.append(Candidate(LAYER_INPUT, len(layers), size, frozenset()))
    return found


def window(layers: Sequence[LayerSteps], makes: Sequence[Layer], cluster: Cluster) -> Window:
    """Of a micro-batch through *layers*, all of which run again."""
    members = _members(layers, makes)
    step_s = {
        (make, position): sum(_forward_s(layers[number].steps[position]) for number in numbers)
        for make, numbers in enumerate(members)
        for position in range(_stop(layers[numbers[0]]))
    }
    steps = [step for layer in layers for step in layer.steps]
    forward_s, back_s = sum(map(_forward_s, steps)), sum(map(_backward_s, steps))
    ports, ports_back = (_ports([m for step in steps for m in moves(step)]) for moves in (_moves, _moves_back))
    again_s = sum(step_s.values())
    node = cluster.node
    memory = node.ddr.bandwidth.value * node.ddr.share.value / min(cluster.accelerators, node.accelerators)
    rates = min(node.host_link.d2h.value, memory), min(node.host_link.h2d.value, memory)
    busy_shares = ports.busy_s / forward_s, (ports.busy_s + ports_back.busy_s) / (back_s + again_s)
    return Window(
        step_s,
        *rates,
        forward_s - ports.link_s,
        back_s + again_s - ports.link_s - ports_back.link_s,
        busy_shares[0] / rates[0] + busy_shares[1] / rates[1],
    )


@dataclass(frozen=True, slots=True)
class _Ports:
    """Transfers that cross the card's link: how long they take, and how long the link works for them."""

    busy_s: float
    link_s: float


def _ports(moves: Sequence[Transfer]) -> _Ports:
    link = f"host link {COPY_OUT}"
    crossing = [move for move in moves if move.collective.link_busy_ns.get(link)]
    busy = sum(_most(move.duration_ns) for move in crossing) / 1e9
    return _Ports(busy, sum(move.collective.link_busy_ns[link] for move in crossing) / 1e9)


def _members(layers: Sequence[LayerSteps], makes: Sequence[Layer]) -> list[list[int]]:
    """Numbers of the layers of each make."""
    found: dict[Layer, list[int]] = {}
    for number in range(len(layers)):
        found.setdefault(replace(makes[number], index=0), []).append(number)
    return list(found.values())


def _stop(layer: LayerSteps) -> int:
    """Where running again ends: the last operator that keeps anything would only save its input."""
    last = max((n for n, step in enumerate(layer.steps) if step.saved.sizes or step.restored.sizes), default=0)
    early = layer.reruns and layer.reruns[0].stretch.stops_early
    return last if early else len(layer.steps)


def _idle(layer: LayerSteps, position: int) -> Iterator[int]:
    yield from idle(layer.steps, (position,), layer.reruns[0].stretch.chain)


def _forward_s(step: Step) -> float:
    return _kernels_s(step.forward) + sum(_most(move.duration_ns) for move in _moves(step)) / 1e9


def _backward_s(step: Step) -> float:
    return _kernels_s(step.backward) + sum(_most(move.duration_ns) for move in _moves_back(step)) / 1e9


def _kernels_s(priced: Priced) -> float:
    return _most(priced.duration_ns) / 1e9


def _moves(step: Step) -> tuple[Transfer, ...]:
    return step.moves


def _moves_back(step: Step) -> tuple[Transfer, ...]:
    return step.moves_back


def _most(quantity: Quantity | Vector | int) -> float:
    return float(np.max(quantity))

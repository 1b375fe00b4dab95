"""Gradients that go into buckets as the backward pass makes them: what DDP and ZeRO-2 have in common.

A hook on a weight runs once its gradient is there: behind the operator that makes it, before the next one is issued. A
weight that two operators use gets one gradient, the sum, when the last of them has run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from simulator.engine.task import Allocation
from simulator.model.operator import Kernel
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter, allocation
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.unit import Unit
from simulator.program.whole_parameters import WholeParameters


@dataclass(frozen=True, slots=True)
class Buckets:
    """How gradients are put together before they are summed."""

    bytes: float
    views: bool = False
    """DDP: gradients are views of the buckets, not copies."""
    overlap: bool = False
    """ZeRO-2: the backward pass goes on beside a reduction."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that has been made: its key in the ledger and its bytes."""

    key: str
    bytes: float


class Arrivals:
    """The gradients of a backward pass, in the order in which they come. *late* weights have several users."""

    def __init__(self, emitter: Emitter, late: Set[str]) -> None:
        self._emitter = emitter
        self._late = late
        self._made: list[Gradient] = []
        self._held_back: dict[str, Gradient] = {}

    def make(self, unit: Unit, weights: Iterable[str]) -> Iterator[Allocation]:
        """What the gradients of *weights* of *unit* take; what adds to one that exists is workspace for a moment."""
        for name in weights:
            key, size = f"gradient.{unit.name}.{name}", float(unit.trained[name][1] * COMPUTE_BYTES)
            if not size:
                continue
            exists = self._emitter.holds(key)
            yield allocation(f"{key} again", "workspace", size) if exists else allocation(key, "gradients", size)
            if name in self._late:
                self._held_back[key] = Gradient(key, size)
            else:
                self._made.append(Gradient(key, size))

    def take(self, *, last: bool = False) -> list[Gradient]:
        """Those that came since, with those of late weights when the pass is over."""
        taken = [*self._made, *(self._held_back.values() if last else ())]
        self._made = []
        if last:
            self._held_back = {}
        return taken


class Bucketed(WholeParameters, ABC):
    """Data parallelism with whole parameters, whose gradients are handed on as they come. *late* as of `Arrivals`."""

    def __init__(self, emitter: Emitter, late: Set[str]) -> None:
        self._arrivals = Arrivals(emitter, late)

    def gradients(self, unit: Unit, weights: tuple[str, ...]) -> list[Allocation]:
        """Gradients of *weights*, beside what became of those before."""
        self._hand_on(self._arrivals.take())
        return list(self._arrivals.make(unit, weights))

    def reduce(self, _unit: Unit) -> None:
        """Hand on the gradients that have come."""
        self._hand_on(self._arrivals.take())

    @abstractmethod
    def _hand_on(self, gradients: Iterable[Gradient]) -> None:
        """Put *gradients* where they are summed."""


def move(emitter: Emitter, costs: Costs, name: str, kind: str, traffic: float) -> int:
    """One pass of *traffic* bytes over memory."""
    return emitter.compute(name, kind, costs.price(Kernel(kind, 0.0, float(traffic))))

"""How popular experts are at a moment: a table that stands still, or one that drifts from step to step.

A recorded drift goes through the windows of the trace, again from the first behind the last. Carried to another number
of experts, a window keeps what its blocks of experts have, and neighbours inside a block are drawn afresh, alike in
every window: drift inside blocks is then lost.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from simulator.forecast.errors import Refused
from simulator.forecast.scenario_routing import Drift, Routing
from simulator.routing.drifting import DriftLaw, drifting
from simulator.routing.library import find_trace, load_routing
from simulator.routing.reading import read_trace
from simulator.routing.resample import resample
from simulator.routing.table import RoutingTable
from simulator.routing.workloads import Shape, workload_table

MOST_MOVES = 2000
"""Moves of a law that are gone through to get to a moment."""


class Popularity:
    """What *asked* says of a model of *layers* MoE layers of *experts* experts, of which a token picks *top_k*."""

    def __init__(self, asked: Routing, folder: Path, layers: int, experts: int, top_k: int) -> None:
        self._asked, self._folder = asked, folder
        self._layers, self._experts, self._top_k = layers, experts, top_k

    def at(self, first: int, count: int, shape: Shape) -> list[RoutingTable]:
        """Those of *count* moments from *first* on, for ranks of *shape*.

        Raise :exc:`Refused` for a moment too far off, and what reading a trace raises.
        """
        asked = self._asked
        if asked.workload is not None:
            return [
                workload_table(asked.workload, asked.seed, first + later, self._layers, shape) for later in range(count)
            ]
        if asked.drift == "recorded":
            return [self._windows[(first + later) % len(self._windows)] for later in range(count)]
        if isinstance(asked.drift, Drift):
            return self._wandered(asked.drift, first, count)
        return [self._table] * count

    def of_trace(self, trace: str | None, field: str) -> RoutingTable:
        """The table of *trace*, which the scenario's field *field* names; a made-up one where there is none."""
        sigma = self._asked.synthetic.sigma if self._asked.synthetic and trace is None else None
        sizes = {"layers": self._layers, "experts": self._experts, "top_k": self._top_k}
        try:
            return load_routing(trace, sigma, seed=self._asked.seed, folder=self._folder, **sizes)
        except FileNotFoundError as error:
            raise Refused([f"routing.{field}: {error}"]) from None

    @cached_property
    def _table(self) -> RoutingTable:
        return self.of_trace(self._asked.trace, "trace")

    @cached_property
    def _windows(self) -> list[RoutingTable]:
        assert self._asked.trace is not None
        try:
            windows = read_trace(find_trace(self._asked.trace, self._folder)).by_window
        except FileNotFoundError as error:
            raise Refused([f"routing.trace: {error}"]) from None
        except ValueError as error:
            raise Refused([f"routing.drift: a window of the trace has too few tokens: {error}"]) from None
        if len(windows) == 1:
            raise Refused(
                ["routing.drift: found recorded, but the trace has one window of steps; allowed: a law, or none"]
            )
        return [
            resample(table, self._layers, self._experts, self._top_k, np.random.default_rng(self._asked.seed))
            for table in windows
        ]

    def _wandered(self, law: Drift, first: int, count: int) -> list[RoutingTable]:
        last = first + count - 1
        if last > MOST_MOVES:
            raise Refused([f"routing.step: {last} moves of the drift lie before it; allowed: up to {MOST_MOVES}"])
        rng = np.random.default_rng([self._asked.seed, 3])
        moves = drifting(self._table, last + 1, DriftLaw(law.spread, law.persistence), self._top_k, rng)
        return list(islice(moves, first, None))

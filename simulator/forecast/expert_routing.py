"""What a routing and a balancing policy make of the experts' load, for any expert-parallel degree and batch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from simulator.forecast.errors import Refused
from simulator.forecast.scenario import Balancing, Scenario
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.routing.library import load_routing
from simulator.routing.outcome import Outcome, Setting
from simulator.routing.policies import apply_policy
from simulator.routing.table import RoutingTable
from simulator.routing.workloads import Shape, workload_table


class ExpertRouting:
    """The routing of a model that has experts; traces are read once."""

    def __init__(self, scenario: Scenario, architecture: Architecture, folder: Path, ranks_per_node: int) -> None:
        parts = [layer.feed_forward for layer in architecture.moe_layers()]
        assert isinstance(parts[0], MixtureOfExperts)
        self._layers, self._experts, self._top_k = len(parts), parts[0].experts, parts[0].top_k
        self._asked, self._folder, self._ranks_per_node = scenario.routing, folder, ranks_per_node
        self._policy = self._asked.policy or Balancing(name="contiguous")

    def outcome(self, ep: int, tokens: int) -> Outcome:
        """What each expert slot receives in a micro-batch when each of *ep* ranks sends *tokens* tokens.

        Raise :exc:`Refused` for a trace that is not there, and what the routing's readers and policies raise.
        """
        asked, shape = self._asked, Shape(self._experts, self._top_k, ep, tokens)
        if asked.workload:
            replayed = workload_table(asked.workload, asked.seed, asked.workload_step, self._layers, shape)
        else:
            replayed = self._recorded
        planned = replayed if self._planned is None else self._planned
        setting = Setting(ep, self._top_k, tokens, self._ranks_per_node, seed=asked.seed)
        return apply_policy(self._policy.name, planned, replayed, setting, **self._policy.options)

    @cached_property
    def _recorded(self) -> RoutingTable:
        return self._table(self._asked.trace, "trace")

    @cached_property
    def _planned(self) -> RoutingTable | None:
        trace = self._policy.planned_on
        return self._table(trace, "policy.planned_on") if trace else None

    def _table(self, trace: str | None, field: str) -> RoutingTable:
        sigma = self._asked.synthetic.sigma if self._asked.synthetic and trace is None else None
        sizes = {"layers": self._layers, "experts": self._experts, "top_k": self._top_k}
        try:
            return load_routing(trace, sigma, seed=self._asked.seed, folder=self._folder, **sizes)
        except FileNotFoundError as error:
            raise Refused([f"routing.{field}: {error}"]) from None

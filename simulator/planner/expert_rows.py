"""Rows of every expert slot for other expert-parallel degrees and batches than the scenario's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.routing.library import load_routing
from simulator.routing.outcome import Setting
from simulator.routing.policies import apply_policy
from simulator.routing.table import IntArray, RoutingTable


class ExpertRows:
    """What the scenario's balancing policy makes of its routing table."""

    def __init__(self, scenario: Scenario, folder: Path, architecture: Architecture, cluster: Cluster) -> None:
        parts = [layer.feed_forward for layer in architecture.moe_layers()]
        assert isinstance(parts[0], MixtureOfExperts)
        self._shape = {"layers": len(parts), "experts": parts[0].experts, "top_k": parts[0].top_k}
        self._asked, self._folder = scenario.routing, folder
        self._ranks_per_node = cluster.node.accelerators
        policy = self._asked.policy
        self._replayed = self._table(self._asked.trace)
        self._planned = self._table(policy.planned_on) if policy and policy.planned_on else self._replayed
        self._policy = (policy.name, policy.options) if policy else ("contiguous", {})
        self.rows = cache(self._rows)

    def _table(self, trace: str | None) -> RoutingTable:
        sigma = self._asked.synthetic.sigma if self._asked.synthetic and trace is None else None
        return load_routing(trace, sigma, seed=self._asked.seed, folder=self._folder, **self._shape)

    def _rows(self, ep: int, tokens: int) -> IntArray:
        """Rows of each slot, [layers, ranks, slots], when each of *ep* ranks sends *tokens* tokens."""
        setting = Setting(ep, self._shape["top_k"], tokens, self._ranks_per_node, seed=self._asked.seed)
        name, options = self._policy
        rows: IntArray = apply_policy(name, self._planned, self._replayed, setting, **options).rows[0]
        return rows

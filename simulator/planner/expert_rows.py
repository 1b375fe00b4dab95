"""Rows of every expert slot for other expert-parallel degrees and batches than the scenario's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from simulator.forecast.expert_routing import ExpertRouting
from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture
from simulator.routing.outcome import Outcome


class ExpertRows:
    """What the scenario's balancing policy makes of its routing table."""

    def __init__(self, scenario: Scenario, folder: Path, architecture: Architecture, cluster: Cluster) -> None:
        self._routing = ExpertRouting(scenario, architecture, folder, cluster.node.accelerators)
        self.outcome = cache(self._outcome)

    def _outcome(self, ep: int, tokens: int) -> Outcome:
        """Rows of each slot, in one micro-batch, when each of *ep* ranks sends *tokens* tokens."""
        return self._routing.outcome(ep, tokens)

"""Rows of every expert slot for other expert-parallel degrees and batches than the scenario's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from simulator.forecast.expert_routing import ExpertRouting
from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.program.job import Job
from simulator.routing.outcome import Outcome


class ExpertRows:
    """What the scenario's balancing policy makes of its routing table."""

    def __init__(self, scenario: Scenario, folder: Path, architecture: Architecture, cluster: Cluster) -> None:
        self._routing = ExpertRouting(scenario, architecture, folder, cluster.node.accelerators)
        self.outcome = cache(self._outcome)

    def _outcome(self, ep: int, tokens: int) -> Outcome:
        """Rows of each slot, in one micro-batch, when each of *ep* ranks sends *tokens* tokens."""
        return self._routing.outcome(ep, tokens)


class EvenRows:
    """Rows of *job*'s experts as if every rank got as many, in one slot."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def outcome(self, ep: int, tokens: int) -> Outcome:
        """Rows of each rank, in one micro-batch, when each of *ep* ranks sends *tokens* tokens."""
        known, experts = self._job.routing, [layer.feed_forward for layer in self._job.architecture.moe_layers()]
        assert known is not None
        choices = np.array([one.top_k for one in experts if isinstance(one, MixtureOfExperts)]) * rows_kept(self._job)
        rows = np.broadcast_to((choices * tokens)[None, :, None, None], (1, len(experts), ep, 1))
        return Outcome(known.placement, rows, np.full((1, ep), tokens))


def rows_kept(job: Job) -> int:
    """1, or 0 where a policy drops rows: how many depends on the split."""
    return int(job.routing is not None and not job.routing.dropped_rows.size)

"""Prices of collectives: the busiest link sets the time, small messages pay latency.

    seconds = start + steps * latency + max over levels of bytes / (rate * attained share)

Bytes per level come from where the group's members lie (`parallel/placement.py`), rates from the fabric. What
concurrent collectives take from each other is left to the engine, which is told how busy each level's links are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Collective
from simulator.hardware.cluster import Cluster, Level
from simulator.hardware.node import Operation
from simulator.parallel.placement import Placement

Amounts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A priced collective, ready to become a task."""

    duration_ns: npt.NDArray[np.int64]
    """Time alone of each behaviour, from the moment its group is complete."""
    collective: Collective
    grade: str


class Network:
    """Collectives of one job on one cluster."""

    def __init__(self, cluster: Cluster, placement: Placement) -> None:
        self._cluster = cluster
        self._placement = placement

    def ring(self, operation: Operation, axis: str, gathered_bytes: float) -> Transfer | None:
        """An all-gather or reduce-scatter of *gathered_bytes* in all, or an all-reduce of as many, along *axis*.

        None where every group has one member: there is nothing to send.
        """
        spread = self._placement.spread(axis)
        if spread.size.max() <= 1:
            return None
        passes = 2.0 if operation == "all_reduce" else 1.0
        loads = passes * self._placement.ring_loads(axis, gathered_bytes)
        latency_s = passes * self._ring_latency_s(operation, spread.within)
        sent = passes * gathered_bytes * (spread.size - 1) / spread.size
        return self._priced(operation, axis, loads, latency_s, sent)

    def exchange(self, sent_bytes: Amounts) -> Transfer | None:
        """An all-to-all among ep ranks; *sent_bytes* [ep, ep] from each source (row) to each destination.

        Every member finishes with the slowest: each of them sends to and receives from the hottest rank until its port
        is done. None where ep is 1.
        """
        if len(sent_bytes) <= 1:
            return None
        out, into = self._placement.exchange_loads(sent_bytes)
        within = self._placement.spread("ep").within
        latency_s = self._first_step_s("all_to_all", within[0]) + self._outer_latency_s(within)
        place = self._placement.folding.representative % len(sent_bytes)
        away = sent_bytes.sum(axis=1) - np.diagonal(sent_bytes)
        return self._priced("all_to_all", "ep", np.maximum(out, into), latency_s, away[place])

    def _priced(
        self, operation: Operation, axis: str, loads: Amounts, latency_s: Amounts, sent_bytes: Amounts
    ) -> Transfer:
        within = self._placement.spread(axis).within
        busy_s = np.stack([load / self._rate(level, operation, within[d]) for d, (level, load) in self._levels(loads)])
        groups = self._placement.folding.groups[axis]
        alone_s = _slowest_of_group(busy_s.max(axis=0), groups) + latency_s
        levels = self._cluster.levels
        return Transfer(
            duration_ns=np.ceil(alone_s * 1e9).astype(np.int64),
            collective=Collective(
                groups=groups,
                link_busy_ns={lv.name: float(busy_s[d].max() * 1e9) for d, lv in enumerate(levels) if busy_s[d].any()},
                wire_bytes=np.asarray(sent_bytes, np.float64),
            ),
            grade=self._grade(operation, busy_s),
        )

    def _levels(self, loads: Amounts) -> list[tuple[int, tuple[Level, Amounts]]]:
        return list(enumerate(zip(self._cluster.levels, loads, strict=True)))

    def _rate(self, level: Level, operation: Operation, members: npt.NDArray[np.int64]) -> Amounts:
        """Attained bytes per second of one accelerator's ports at *level*; in a mesh, of its links to members only."""
        rate = np.full(len(members), level.bandwidth_bytes_per_s)
        if level.kind == "mesh":
            rate = np.minimum(rate, level.peer_bandwidth_bytes_per_s * np.maximum(members - 1, 1))
        collective = self._cluster.node.scale_up.collectives.get(operation)
        inner = level is self._cluster.levels[0]
        return rate * (collective.share.value if collective and inner else level.share)

    def _first_step_s(self, operation: Operation, inner_members: npt.NDArray[np.int64]) -> Amounts:
        collective = self._cluster.node.scale_up.collectives.get(operation)
        start_s = collective.start.value if collective else self._cluster.levels[0].latency_s
        step_s = collective.step.value if collective else 0.0
        return np.asarray(start_s + (inner_members - 1) * step_s, np.float64)

    def _ring_latency_s(self, operation: Operation, within: npt.NDArray[np.int64]) -> Amounts:
        """The ring's steps: those inside the scale-up domain, and one out of each further domain it passes."""
        latency_s = self._first_step_s(operation, within[0])
        for d in range(1, len(within)):
            domains = within[d] // within[d - 1]
            latency_s = latency_s + (domains - 1) * self._cluster.levels[d].latency_s
        return latency_s

    def _outer_latency_s(self, within: npt.NDArray[np.int64]) -> Amounts:
        """One way through the outermost level that the group needs."""
        latency_s = np.zeros(within.shape[1])
        for d in range(1, len(within)):
            latency_s = np.where(within[d] > within[d - 1], self._cluster.levels[d].latency_s, latency_s)
        return latency_s

    def _grade(self, operation: Operation, busy_s: Amounts) -> str:
        """The grade of the rate that decided."""
        if int(busy_s.max(axis=1).argmax()) > 0:
            nic = self._cluster.node.nic
            return nic.share.grade if nic else self._cluster.node.scale_up.bandwidth.grade
        collective = self._cluster.node.scale_up.collectives.get(operation)
        return collective.share.grade if collective else self._cluster.node.scale_up.bandwidth.grade


def _slowest_of_group(seconds: Amounts, groups: npt.NDArray[np.int64]) -> Amounts:
    slowest = np.zeros(int(groups.max()) + 1)
    np.maximum.at(slowest, groups, seconds)
    result: Amounts = slowest[groups]
    return result

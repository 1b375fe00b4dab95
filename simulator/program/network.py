"""Prices of collectives: the busiest link sets the time, small messages pay latency.

    seconds = latency + max over levels of bytes / (rate * attained share)

Inside a node both come from the library's timings. Between nodes the library's algorithms are set side by side and the
one that ends first is taken, as the library does (`algorithms/`). Bytes per level come from where the group's members
lie (`parallel/placement.py`), rates from the fabric. What concurrent collectives take from each other is left to the
engine, which is told how busy each level's links are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Collective
from simulator.hardware.cluster import SCALE_UP_KINDS, Cluster, Level
from simulator.hardware.collective import AnyOperation, Formula, Operation, Timed
from simulator.hardware.occupancy import Occupant, share_of_units, share_taken
from simulator.hardware.staging import host_busy_s, port_busy_s
from simulator.model.operator import Collective as LayerCollective
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement, Spread
from simulator.program.algorithms import Group, soonest
from simulator.program.exchanges import Way, exchanges
from simulator.program.sends import send_times

Amounts = npt.NDArray[np.float64]
PCIE_BYTES_PER_S = 64e9
"""Of PCIe 5.0 x16: scale-up links that are no faster are taken to be PCIe."""
COUNT_BYTES = 8
"""An int64 for each expert."""
LARGE_BYTES = 1e9
"""A message whose latency does not count."""
MOST_UNDERSTOOD = 2
"""Super-nodes among which all-reduces take what their links and the library's latencies say."""
EACH_BY_ITSELF = exchanges()["all_to_all"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A priced collective, ready to become a task."""

    kind: str
    """The operation."""
    duration_ns: npt.NDArray[np.int64]
    """Time alone of each behaviour, from the moment its group is complete."""
    collective: Collective
    grade: str
    algorithms: tuple[str, ...] = ()
    """What the library chose, where it has a choice: of all groups, in order of name."""

    @property
    def longest_s(self) -> float:
        """Of the behaviour that takes longest."""
        return float(self.duration_ns.max()) / 1e9


class Network:
    """Collectives of one job on one cluster."""

    def __init__(self, cluster: Cluster, placement: Placement, mesh: Mesh) -> None:
        self._cluster = cluster
        self._placement = placement
        self._mesh = mesh
        self._known: dict[tuple[str, str, int | None, float], Transfer | None] = {}
        self._counts: dict[tuple[str, int, Way], Transfer | None] = {}
        self._handed_over: dict[tuple[float, int, int], Transfer] = {}

    def ring(self, operation: Operation, axis: str, gathered_bytes: float | Amounts) -> Transfer | None:
        """An all-gather or reduce-scatter of *gathered_bytes* in all, or an all-reduce of as many, along *axis*.

        None where every group has one member: there is nothing to send.
        """
        spread = self._placement.spread(axis)
        if spread.size.max() <= 1:
            return None
        message = np.broadcast_to(np.asarray(gathered_bytes, float), spread.size.shape)
        group = self._group(operation, spread, message)
        rates = self._rates(operation, spread.within, message)
        return self._ringed(axis, group, group.spread.port_loads(group.on_wire_bytes) / rates)

    def broadcast(self, axis: str, size: float) -> Transfer | None:
        """*size* bytes from the first member of each group along *axis* to all others, one after the other.

        The library has no tree or switch for it: the buffer follows the ring in chunks, so that links carry all of it
        at the rate of a large gather, after the wait of a small one, which goes as far. None where every group has one
        member.
        """
        spread = self._placement.spread(axis)
        if spread.size.max() <= 1:
            return None
        group = self._group("one_to_all", spread, np.full(spread.size.shape, float(size)))
        return self._ringed(axis, group, group.spread.port_loads(group.on_wire_bytes) / self._large_rates(group))

    def _ringed(self, axis: str, group: Group, inner_busy_s: Amounts) -> Transfer:
        """What passes the members of *group* in turn; *inner_busy_s* [levels, behaviours] is of those in a node."""
        operation, spread = group.operation, group.spread
        inner = spread.within[0] >= spread.size
        busy_s, latency_s = inner_busy_s, self._inner_latency_s(operation, spread.within[0], group.message_bytes)
        names = np.where(inner, "timed", "").astype(object)
        if not inner.all():
            links = self._cluster.node.scale_up
            in_switch = (
                self._cluster.levels[0].bandwidth_bytes_per_s * links.in_switch.value if links.in_switch else None
            )
            between = soonest(group, self._large_rates(group), in_switch)
            busy_s, latency_s = np.where(inner, busy_s, between.busy_s), np.where(inner, latency_s, between.latency_s)
            names = np.where(inner, names, between.names)
        taken = self._taken_by(operation, group, names)
        transfer = self._transfer(operation, axis, busy_s, latency_s, group.on_wire_bytes, taken, names)
        return transfer if inner.all() else replace(transfer, grade=self._grade_beyond(group, busy_s, transfer))

    def _group(self, operation: AnyOperation, spread: Spread, message_bytes: Amounts) -> Group:
        levels, links = self._cluster.levels, self._cluster.node.scale_up
        inside = sum(level.kind in SCALE_UP_KINDS for level in levels)
        reached = (spread.within >= spread.size).argmax(axis=0)
        return Group(
            operation,
            message_bytes,
            spread,
            self._inside(spread),
            inside,
            np.array([levels[int(d)].latency_s for d in reached]),
            links.bandwidth.value > PCIE_BYTES_PER_S,
            links.in_switch is not None,
        )

    def _taken_by(self, operation: AnyOperation, group: Group, names: npt.NDArray[np.object_]) -> Amounts:
        """Share of compute that rings, trees and switches take, by what was chosen."""
        collective = self._scale_up_collective(operation)
        timed = collective.in_switch(group.spread.size) if collective else np.zeros(len(names), bool)
        in_switch = np.where(names == "timed", timed, names == "nvls")
        beyond = np.where(group.inside >= group.spread.size, self._share("collective"), self._share("between_nodes"))
        return np.where(in_switch, self._share("in_switch"), beyond)

    def _share(self, occupant: Occupant) -> float:
        return share_taken(self._cluster, occupant)

    def _large_rates(self, group: Group) -> Amounts:
        """Attained bytes per second of large messages on the way between nodes, [levels, behaviours]."""
        collective = self._scale_up_collective(group.operation)
        alone = collective.without_switch() if collective else None
        large, rates, rings = np.full(len(group.inside), LARGE_BYTES), [], self._cluster.node.scale_up.rings_beyond
        for level, members in zip(self._cluster.levels, group.spread.within, strict=True):
            if level.kind in SCALE_UP_KINDS and rings is not None:
                rates.append(np.full(len(members), level.bandwidth_bytes_per_s * rings.value))
            elif level.kind in SCALE_UP_KINDS:
                rates.append(self._rate(level, alone, members, large))
            else:
                rates.append(np.full(len(members), level.bandwidth_bytes_per_s * level.ring_share))
        return np.stack(rates)

    def exchange(self, sent_bytes: Amounts, way: Way = EACH_BY_ITSELF) -> Transfer | None:
        """An all-to-all among ep ranks; *sent_bytes* [ep, ep] from each source (row) to each destination.

        Every member finishes with the slowest: each of them sends to and receives from the hottest rank until its port
        is done. None where ep is 1. *way* says what it runs on.
        """
        if len(sent_bytes) <= 1:
            return None
        out, into = self._placement.exchange_loads(sent_bytes)
        spread = self._placement.spread("ep")
        within = spread.within
        message = float(sent_bytes.sum(axis=1).mean())
        latency_s = self._inner_latency_s("all_to_all", within[0], message) + self._reached_latency_s(within)
        place = self._placement.folding.representative % len(sent_bytes)
        away = sent_bytes.sum(axis=1) - np.diagonal(sent_bytes)
        rates, taken = self._rates("all_to_all", within, message), self._taken_by_exchange(spread)
        if way.one_sided:
            rates, latency_s = self._one_sided(spread, rates, latency_s)
        if way.units is not None:
            taken = np.full(len(place), share_of_units(self._cluster, way.units))
        levels = self._cluster.levels
        busy = np.stack([self._cluster.port_bytes(*each) for each in zip(levels, out, into, strict=True)])
        return self._transfer("all_to_all", "ep", busy / rates, latency_s, away[place], taken)

    def counts(self, operation: Literal["all_to_all", "all_gather"], experts: int, way: Way) -> Transfer | None:
        """How many rows go to each expert, told by *operation* before *way* sends them, until the host has read it.

        *experts* are those of one rank. None where nobody has to know: ep is 1, or rows come without being announced.
        """
        key = (operation, experts, way)
        if key not in self._counts:
            self._counts[key] = None if way.one_sided else self._told(operation, experts, way)
        return self._counts[key]

    def _told(self, operation: Literal["all_to_all", "all_gather"], experts: int, way: Way) -> Transfer | None:
        ranks, read_s = self._mesh.ep, self._cluster.node.host_link.latency.value
        each = np.full((ranks, ranks), float(experts * COUNT_BYTES))
        if way.count_writes is not None:
            written = self.exchange(each, replace(way, one_sided=True))
            return written and replace(written, duration_ns=written.duration_ns * way.count_writes)
        told = self.exchange(each) if operation == "all_to_all" else self.ring("all_gather", "ep", float(each.sum()))
        return told and replace(told, duration_ns=told.duration_ns + int(read_s * 1e9))

    def _one_sided(self, spread: Spread, rates: Amounts, latency_s: Amounts) -> tuple[Amounts, Amounts]:
        """Rates [levels, behaviours] and latency where ports write rows by themselves, as far as that is known."""
        nic, levels = self._cluster.node.nic, self._cluster.levels
        if nic is None or nic.one_sided is None:
            return rates, latency_s
        share = nic.one_sided.share.value
        factor = np.array([1.0 if level.kind in SCALE_UP_KINDS else share / level.share for level in levels])
        beyond = self._inside(spread) < spread.size
        return rates * factor[:, None], np.where(beyond, nic.one_sided.start.value, latency_s)

    def shuffle(self, axis: str, held_bytes: float) -> Transfer | None:
        """An all-to-all along *axis* in which every member spreads *held_bytes* evenly over all of its group.

        None where every group has one member.
        """
        spread = self._placement.spread(axis)
        if spread.size.max() <= 1:
            return None
        latency_s = self._inner_latency_s("all_to_all", spread.within[0], held_bytes)
        for d in range(1, len(spread.within)):
            reaches = spread.within[d] > spread.within[d - 1]
            latency_s = np.where(reaches, latency_s + self._cluster.levels[d].latency_s, latency_s)
        away = held_bytes * (spread.size - 1) / spread.size
        return self._exchanged(axis, self._placement.shuffle_loads(axis, held_bytes), latency_s, away, held_bytes)

    def collective(self, asked: LayerCollective, size: float | Amounts) -> Transfer | None:
        """A collective of the layer's operators, of *size* bytes in all; None where its groups have one member.

        Most layers are alike, so what one number of bytes takes is remembered.
        """
        if isinstance(size, np.ndarray):
            return self._collective(asked, size)
        key = (asked.operation, asked.axis, asked.units, size)
        if key not in self._known:
            self._known[key] = self._collective(asked, size)
        return self._known[key]

    def _collective(self, asked: LayerCollective, size: float | Amounts) -> Transfer | None:
        found = self._by_library(asked, size)
        if found is None or asked.units is None:
            return found
        taken = share_of_units(self._cluster, asked.units) if asked.units else 0.0
        return replace(found, collective=replace(found.collective, compute_taken=taken))

    def _by_library(self, asked: LayerCollective, size: float | Amounts) -> Transfer | None:
        if asked.operation == "all_to_all":
            return self._even_exchange(asked.axis, size)
        if asked.operation == "send" or asked.operation == "relay":
            return self._neighbours(asked.axis, float(np.max(size)), in_turn=asked.operation == "relay")
        return self.ring(asked.operation, asked.axis, size)

    def _even_exchange(self, axis: str, size: float | Amounts) -> Transfer | None:
        """An all-to-all in which each member of a group along *axis* sends an equal share of *size* bytes to each."""
        spread = self._placement.spread(axis)
        if spread.size.max() <= 1:
            return None
        within = spread.within
        nearer = np.concatenate([np.ones((1, len(spread.size)), np.int64), within[:-1]])
        loads = size * (within - nearer) / spread.size
        latency_s = self._inner_latency_s("all_to_all", within[0], size) + self._reached_latency_s(within)
        return self._exchanged(axis, loads, latency_s, size * (spread.size - 1) / spread.size, size)

    def _reached_latency_s(self, within: npt.NDArray[np.int64]) -> Amounts:
        """Latency of the levels beyond the innermost domain that a group reaches, [behaviours]."""
        latency_s = np.zeros(within.shape[1])
        for d in range(1, len(within)):
            latency_s += np.where(within[d] > within[d - 1], self._cluster.levels[d].latency_s, 0.0)
        return latency_s

    def _neighbours(self, axis: str, size: float, *, in_turn: bool) -> Transfer | None:
        """A message of *size* bytes from each member of a group to the next: all at once, or one after the other."""
        spread = self._placement.spread(axis)
        hops = spread.size - 1
        if hops.max() < 1:
            return None
        reached = (spread.within >= spread.size).argmax(axis=0)
        busy_s, wait_s = send_times(self._cluster, reached, size)
        turns = hops if in_turn else np.minimum(hops, 1)
        return Transfer(
            kind="send",
            duration_ns=np.ceil((busy_s.max(axis=0) + wait_s) * turns * 1e9).astype(np.int64),
            collective=Collective(
                communicator=axis,
                groups=self._placement.folding.groups[axis],
                link_busy_ns=self._link_busy_ns(busy_s * turns),
                wire_bytes=size,
                compute_taken=self._taken_by_send(reached),
            ),
            grade=self._grade("all_to_all", busy_s),
        )

    def _taken_by_send(self, reached: npt.NDArray[np.int64]) -> Amounts:
        """Share of compute that sends over the levels *reached* take."""
        near = np.array([level.kind in SCALE_UP_KINDS for level in self._cluster.levels])
        return np.where(near[reached], self._share("exchange"), self._share("send_between_nodes"))

    def hand_over(self, size: float, meeting: str, sender: int, receiver: int) -> Transfer:
        """A message of *size* bytes from every rank of stage *sender* to its like in stage *receiver*, known to both as
        *meeting*.
        """
        key = size, sender, receiver
        if key not in self._handed_over:
            self._handed_over[key] = self._hand_over(*key)
        transfer = self._handed_over[key]
        return replace(transfer, collective=replace(transfer.collective, meeting=meeting))

    def _hand_over(self, size: float, sender: int, receiver: int) -> Transfer:
        ranks, there = (
            stage * self._mesh.stage_ranks + self._placement.folding.representative for stage in (sender, receiver)
        )
        sizes = np.array([level.size for level in self._cluster.levels])[:, None]
        reached = (ranks // sizes == there // sizes).argmax(axis=0)
        busy_s, wait_s = send_times(self._cluster, reached, size)
        return Transfer(
            kind="pipeline",
            duration_ns=np.ceil((busy_s.max(axis=0) + wait_s) * 1e9).astype(np.int64),
            collective=Collective(
                communicator="pp",
                groups=np.arange(len(ranks)),
                link_busy_ns=self._link_busy_ns(busy_s),
                wire_bytes=size,
                compute_taken=self._taken_by_send(reached),
                parts=(sender, receiver),
            ),
            grade=self._grade("all_to_all", busy_s),
        )

    def _exchanged(
        self,
        axis: str,
        loads: Amounts,
        latency_s: Amounts,
        sent_bytes: Amounts,
        message_bytes: float | Amounts,
    ) -> Transfer:
        spread = self._placement.spread(axis)
        rates, taken = self._rates("all_to_all", spread.within, message_bytes), self._taken_by_exchange(spread)
        return self._transfer("all_to_all", axis, loads / rates, latency_s, sent_bytes, taken)

    def _taken_by_exchange(self, spread: Spread) -> Amounts:
        """Share of compute that the library's channels take."""
        return np.where(self._inside(spread) >= spread.size, self._share("exchange"), self._share("between_nodes"))

    def _inside(self, spread: Spread) -> npt.NDArray[np.int64]:
        """Members that each behaviour's group has within reach of scale-up links."""
        inside: npt.NDArray[np.int64] = spread.within[sum(lv.kind in SCALE_UP_KINDS for lv in self._cluster.levels) - 1]
        return inside

    def _transfer(
        self,
        operation: AnyOperation,
        axis: str,
        busy_s: Amounts,
        latency_s: Amounts,
        sent_bytes: Amounts,
        taken: Amounts,
        algorithms: npt.NDArray[np.object_] | None = None,
    ) -> Transfer:
        groups = self._placement.folding.groups[axis]
        alone_s = _slowest_of_group(busy_s.max(axis=0), groups) + latency_s
        return Transfer(
            kind=operation,
            duration_ns=np.ceil(alone_s * 1e9).astype(np.int64),
            collective=Collective(
                communicator=axis,
                groups=groups,
                link_busy_ns=self._link_busy_ns(busy_s, ring=operation != "all_to_all"),
                wire_bytes=np.asarray(sent_bytes, np.float64),
                compute_taken=taken,
            ),
            grade=self._grade(operation, busy_s),
            algorithms=() if algorithms is None else tuple(sorted(set(algorithms.tolist()))),
        )

    def _link_busy_ns(self, busy_s: Amounts, *, ring: bool = False) -> dict[str, float]:
        """Of each level's links, [levels, behaviours], and of the card's own, over which what leaves a node goes to its
        port or its host, as copies do.
        """
        levels = self._cluster.levels
        busy = {lv.name: float(busy_s[d].max() * 1e9) for d, lv in enumerate(levels) if busy_s[d].any()}
        attained = [lv.bandwidth_bytes_per_s * (lv.ring_share if ring else lv.share) for lv in levels]
        rates = np.where([lv.kind in SCALE_UP_KINDS for lv in levels], 0.0, attained)
        sent_bytes = float((busy_s * rates[:, None]).sum(axis=0).max())
        crossed = host_busy_s if self._cluster.staged else port_busy_s
        return busy | {link: s * 1e9 for link, s in crossed(self._cluster, sent_bytes).items() if s}

    def _rates(self, operation: AnyOperation, within: npt.NDArray[np.int64], message_bytes: float | Amounts) -> Amounts:
        collective = self._scale_up_collective(operation)
        levels = enumerate(self._cluster.levels)
        return np.stack([self._rate(level, collective, within[d], message_bytes) for d, level in levels])

    def _rate(
        self,
        level: Level,
        collective: Formula | Timed | None,
        members: npt.NDArray[np.int64],
        message_bytes: float | Amounts,
    ) -> Amounts:
        """Attained bytes per second of one accelerator's ports at *level*; in a mesh, of its links to members only."""
        rate = np.full(len(members), level.bandwidth_bytes_per_s)
        if level.kind == "mesh":
            rate = np.minimum(rate, level.peer_bandwidth_bytes_per_s * np.maximum(members - 1, 1))
        if collective is None or level.kind not in SCALE_UP_KINDS:
            return rate * level.share
        share = collective.share_at(members, self._cluster.node.scale_up.domain, message_bytes)
        return np.asarray(rate * share, np.float64)

    def _inner_latency_s(
        self, operation: AnyOperation, inner_members: npt.NDArray[np.int64], message_bytes: float | Amounts
    ) -> Amounts:
        """What the library needs inside the innermost domain besides moving bytes."""
        collective = self._scale_up_collective(operation)
        if collective is None:
            return np.full(len(inner_members), self._cluster.levels[0].latency_s)
        return np.asarray(collective.latency_s(np.maximum(inner_members, 2), message_bytes), np.float64)

    def _scale_up_collective(self, operation: AnyOperation) -> Formula | Timed | None:
        collectives = self._cluster.node.scale_up.collectives
        if operation != "one_to_all":
            return collectives.get(operation)
        gathers = collectives.get("all_gather")
        return gathers.without_switch() if gathers else None

    def _grade_beyond(self, group: Group, busy_s: Amounts, transfer: Transfer) -> str:
        """The grade of a ring, tree or reduction through several nodes, whose scale-up links may have decided.

        Groups over more than two super-nodes are not understood: the only ones published, of 20 racks of GB200, took
        two to four times what the links and the library's latencies say (docs/collectives.md).
        """
        links = self._cluster.node.scale_up
        decisive = self._cluster.levels[int(busy_s.max(axis=1).argmax())]
        if links.beyond_node is None:
            return transfer.grade
        if int(group.domains.max()) > MOST_UNDERSTOOD:
            return "assumed"
        if decisive.kind not in SCALE_UP_KINDS:
            return transfer.grade
        if links.in_switch is not None and "nvls" in transfer.algorithms:
            return links.in_switch.grade
        if links.rings_beyond is not None and group.operation == "all_reduce":
            return links.rings_beyond.grade
        return "scaled" if transfer.grade == "measured" else transfer.grade

    def _grade(self, operation: AnyOperation, busy_s: Amounts) -> str:
        """The grade of the rate that decided."""
        decisive = self._cluster.levels[int(busy_s.max(axis=1).argmax())]
        nic = self._cluster.node.nic
        if decisive.kind not in SCALE_UP_KINDS and nic is not None:
            return nic.share.grade
        collective = self._scale_up_collective(operation)
        return collective.grade if collective else self._cluster.node.scale_up.bandwidth.grade


def _slowest_of_group(seconds: Amounts, groups: npt.NDArray[np.int64]) -> Amounts:
    slowest = np.zeros(int(groups.max()) + 1)
    np.maximum.at(slowest, groups, seconds)
    result: Amounts = slowest[groups]
    return result

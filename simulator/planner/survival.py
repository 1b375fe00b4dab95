"""Survival: what is left of a split when nodes are lost, so that the job goes on without them.

Tensor, context, pipeline and expert parallelism stay as they are, and so does the batch; data parallelism shrinks to
the most ranks that the cards left have room for and the batch divides by (elastic data parallelism), on whole nodes
where they are more than one holds. Spare nodes take the place of as many lost ones first. Some of the cards that are
left may have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from simulator.forecast.errors import Refused
from simulator.forecast.scenario import Scenario
from simulator.hardware.cluster import Cluster
from simulator.planner.case import Case, Row
from simulator.planner.splits import NO_OVERLAP, SCHEDULES, Split, Splits

_SHRINKING = (
    "dp_shard", "tp", "cp", "pp", "ep", "etp", "micro_batch_sequences", "schedule", "virtual_pipeline", "overlap",
)  # fmt: skip
"""What says to which ranks a split may shrink: dp_replicate follows from the cards."""


@dataclass(slots=True)
class Survival:
    """Splits with nodes lost: how to forecast them, and what was found."""

    left: int
    """Cards that are left, spare ones counted, no more than the job has."""
    case: Callable[[int], Case]
    """Of the split with a number, as it goes on."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Those of candidates whose loss was forecast."""

    def fails(self, number: int) -> bool:
        """Whether a split is known not to go on, or has no forecast that says so."""
        return number in self.rows and self.rows[number]["verdict"] not in ("fits", "tight")


def cards_left(scenario: Scenario, cluster: Cluster) -> int | None:
    """Cards of *scenario* with as many nodes lost as its plan has to survive; None where it need not survive any.

    Raise :exc:`Refused` where none are left, or where it is not known what of them is broken.
    """
    asked = scenario.campaign
    if asked is None or not asked.survive_nodes:
        return None
    lost = max(0, asked.survive_nodes - asked.spare_nodes)
    left = cluster.accelerators - lost * cluster.node.accelerators
    if left <= 0:
        nodes = -(-cluster.accelerators // cluster.node.accelerators)
        raise Refused(
            [
                f"campaign.survive_nodes: found {asked.survive_nodes}, but there are {nodes} nodes and "
                f"{asked.spare_nodes} spare ones; nearest: {nodes - 1 + asked.spare_nodes}, or campaign.spare_nodes "
                f"{asked.survive_nodes - nodes + 1}"
            ]
        )
    if lost and scenario.cluster.degraded is not None:
        raise Refused(
            [
                "cluster.degraded: the nodes that are lost may be those that are slow or broken; leave it out, or give "
                f"campaign.spare_nodes {asked.survive_nodes}"
            ]
        )
    return left


def surviving(splits: Splits, cards: int, batch: int, node: int) -> npt.NDArray[np.bool_]:
    """Which of *splits* can go on with so many *cards*, *node* of them in each, and a *batch* of as many sequences."""
    first, which = splits.distinct(*_SHRINKING)
    found = np.array([shrunk(splits.split(int(number)), cards, batch, node) is not None for number in first], bool)
    return found[which]


def shrunk(split: Split, cards: int, batch: int, node: int) -> Split | None:
    """*split* on at most so many *cards* of nodes that hold *node* each; None where it cannot go on with them."""
    each = split.tp * split.cp * split.pp
    for dp_replicate, dp_shard in _ranks(split.dp_replicate, split.dp_shard, cards // each):
        ranks = dp_replicate * dp_shard * each
        if ranks > node and ranks % node:
            continue
        smaller = replace(split, dp_replicate=dp_replicate, dp_shard=dp_shard)
        if _is_possible(smaller, batch):
            return smaller
    return None


@cache
def _ranks(dp_replicate: int, dp_shard: int, most: int) -> tuple[tuple[int, int], ...]:
    """Degrees no larger than these whose product is at most *most*: the largest first, of those shards as they are."""
    found = product(range(1, dp_replicate + 1), range(1, dp_shard + 1))
    allowed = [(count, shards) for count, shards in found if count * shards <= most]
    return tuple(sorted(allowed, key=lambda pair: (pair[0] * pair[1], pair[1] == dp_shard, pair[1]), reverse=True))


def _is_possible(split: Split, batch: int) -> bool:
    """Whether the batch divides, experts lie as before, and the schedule has the micro-batches that it takes."""
    micro_batches, left = divmod(batch, split.dp_replicate * split.dp_shard * split.micro_batch_sequences)
    if left or micro_batches < split.pp or split.dp_shard * split.cp * split.tp % (split.ep * split.etp):
        return False
    if SCHEDULES[split.schedule] == "dualpipe":
        return micro_batches % 2 == 0 and micro_batches >= 2 * split.pp
    if split.virtual_pipeline > 1:
        return micro_batches % split.pp == 0
    return split.overlap == NO_OVERLAP or micro_batches > 1

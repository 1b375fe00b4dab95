"""Memory that the cards of a node share: what the fullest node holds of it, against what it has.

A node's figure is the sum of its cards' peaks. Wrong where they come at different moments, as with several stages of a
pipeline in one node: then it is more than is held at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.engine.ledger import TierLedger
from simulator.hardware.cluster import Cluster
from simulator.hardware.pooled import memory_ratio
from simulator.parallel.folding import Folding


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """One tier of the node that holds most there."""

    number: int
    cards: int
    peak_bytes: float
    capacity_bytes: float

    @property
    def excess_bytes(self) -> float:
        """What is too much; below zero where there is room."""
        return self.peak_bytes - self.capacity_bytes

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "number": self.number,
            "cards": self.cards,
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
        }


def shared_capacities(cluster: Cluster) -> dict[str, float]:
    """Bytes of each tier that the cards of a node share; of host memory, with their part of what others lend."""
    node = cluster.node
    capacities = {"ddr": node.ddr.capacity.value * memory_ratio(cluster)}
    if node.nvme is not None:
        capacities["nvme"] = node.nvme.capacity.value
    return capacities


def fullest_nodes(
    stages: Sequence[Mapping[str, TierLedger]], cluster: Cluster, folding: Folding
) -> dict[str, NodeMemory]:
    """The fullest node of each shared tier that holds anything; *stages* are the ledgers of all pipeline stages."""
    found = {}
    for tier, capacity in shared_capacities(cluster).items():
        held = np.concatenate([_of_ranks(ledgers.get(tier), folding) for ledgers in stages])
        if held.any():
            cards = min(len(held), cluster.node.accelerators)
            sums = held.reshape(-1, cards).sum(axis=1)
            worst = int(sums.argmax())
            found[tier] = NodeMemory(worst, cards, float(sums[worst]), capacity)
    return found


def _of_ranks(ledger: TierLedger | None, folding: Folding) -> np.ndarray:
    """The peak of each rank of a stage."""
    return ledger.peak_bytes[folding.behaviour] if ledger else np.zeros(len(folding.behaviour))

"""How often parts of a cluster fail, and how long it takes to go on."""

from __future__ import annotations

from simulator.hardware.cluster import Cluster
from simulator.hardware.figure import Figure, Record
from simulator.units import Seconds


class FailureSheet(Record):
    """What a file of hardware_profiles/failures says: mean times between failures of one part each."""

    name: str
    card_mtbf: Figure[Seconds]
    node_mtbf: Figure[Seconds]
    """Of what a node has beside its cards."""
    port_mtbf: Figure[Seconds]
    """Of one card's way through the fabric."""
    software_mtbf: Figure[Seconds]
    """Of the job's processes, each."""
    detection: Figure[Seconds]
    """Until somebody notices that the job has stopped."""
    restart: Figure[Seconds]
    """From there until a checkpoint is read."""
    repair: Figure[Seconds]
    """Until a node that lost a card or failed itself is back."""

    def broken_nodes_per_s(self, cluster: Cluster) -> float:
        """Failures that take a node out, in all of *cluster*."""
        nodes = cluster.accelerators / cluster.node.accelerators
        return cluster.accelerators / self.card_mtbf.value + nodes / self.node_mtbf.value

    def interruptions_per_s(self, cluster: Cluster) -> float:
        """Failures that need no more than a restart, in all of *cluster*."""
        return cluster.accelerators * (1 / self.port_mtbf.value + 1 / self.software_mtbf.value)

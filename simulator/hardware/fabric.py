"""Scale-out fabrics: tiers of switches above the nodes' ports.

A tier is a domain of so many nodes in which an accelerator can use so much of its port. Parallel switches of one tier
are taken as one (ideal spreading of flows over paths), which hash-based routing does not reach under few, large flows.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from simulator.hardware.collective import Count
from simulator.hardware.figure import Figure, Record
from simulator.units import BytesPerSecond, Seconds


class Tier(Record):
    """One layer of switches, from the ports upwards."""

    name: Annotated[str, Field(min_length=1)]
    kind: Literal["rail", "spine", "core"]
    """rail: port r of every node of the domain meets at leaf r. spine, core: what joins domains of the tier below."""
    nodes: Count
    """Nodes in one domain: the scalable unit for leaves, the reach of the whole tier for what lies above."""
    oversubscription: Figure[Annotated[float, Field(ge=1)]]
    """Capacity below the tier over its own: 2 lets each accelerator use half of its port when all speak at once."""
    hops: Annotated[int, Field(ge=1, le=9)]
    """Switches on a path that turns around in this tier."""


class Fabric(Record):
    """What a file of hardware_profiles/fabrics says."""

    name: str
    port_bandwidth: Figure[BytesPerSecond] | None = None
    """Rate of one port, one direction; the slower of port and NIC counts."""
    hop_latency: Figure[Seconds] | None = None
    tiers: tuple[Tier, ...] = ()
    """Inside out. None: the nodes are not connected."""
    notes: str = ""

    @field_validator("tiers")
    @classmethod
    def _grow(cls, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        for inner, outer in pairwise(tiers):
            if outer.nodes <= inner.nodes or outer.nodes % inner.nodes:
                raise ValueError(
                    f"{outer.name} spans {outer.nodes} nodes, not a multiple of the {inner.nodes} of {inner.name}"
                )
        return tiers

    @property
    def reach_nodes(self) -> int:
        """Nodes that the fabric can connect."""
        return self.tiers[-1].nodes if self.tiers else 1

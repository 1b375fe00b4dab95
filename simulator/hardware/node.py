"""Nodes: a server's accelerators, the links between them, and the memory and links that they share.

Every rate is one direction and per accelerator, except `ddr` and `nvme`, which are per node. Vendors often print both
directions added up.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from simulator.hardware.figure import Figure, Floats, Record, Share
from simulator.units import Bytes, BytesPerSecond, Seconds, human_rate

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Operation = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]

BULK_HALF_BYTES_PER_RANK = 2**19
"""Among 8 ranks NCCL on A100, H100, H200 and B200 waits as a small message does up to 1 MiB, and its full further wait
from 16 MiB on (ai-dynamo/aiconfigurator@095f58a5, comm/nccl tables); between 2 H200 it does so at a quarter of these
sizes (own measurement, hardware_profiles/measured/h200-sxm/collectives.parquet)."""


class Collective(Record):
    """How a library's collective runs over the scale-up links.

    A small message over n ranks takes `start + (n - 1) * step`. A large one moves its bytes at a share of the link
    rate, after a further wait of `bulk` for a change of protocol; half of that wait is met at
    `BULK_HALF_BYTES_PER_RANK` for each rank.
    """

    share: Figure[Share]
    """Bus bandwidth (bytes on each rank's wire per second) over the scale-up bandwidth, in a full domain."""
    few_ranks: dict[Count, Figure[Share]] = Field(default_factory=dict)
    """The same for smaller groups, by ranks: those keep fewer channels busy."""
    start: Figure[Seconds]
    step: Figure[Seconds]
    bulk: Figure[Seconds] | None = None

    def share_at(self, ranks: ArrayLike, domain: int) -> Floats:
        """The share for groups of *ranks* in a node of *domain* accelerators, interpolated on log ranks."""
        known = {count: figure.value for count, figure in self.few_ranks.items()} | {domain: self.share.value}
        counts = sorted(known)
        asked = np.log(np.maximum(np.asarray(ranks, float), 1.0))
        return np.asarray(np.interp(asked, np.log(counts), [known[count] for count in counts]))

    def latency_s(self, ranks: ArrayLike, message_bytes: ArrayLike) -> Floats:
        """All of the time that does not grow with bytes over rate; 0 for a lone rank or an empty message.

        *message_bytes* are those of the whole buffer: what a gather ends with, a reduction begins with.
        """
        ranks_, size = np.asarray(ranks, float), np.asarray(message_bytes, float)
        half_bytes = ranks_ * BULK_HALF_BYTES_PER_RANK
        bulk_s = self.bulk.value * size / (size + half_bytes) if self.bulk else 0.0
        wait_s = self.start.value + (ranks_ - 1) * self.step.value + bulk_s
        return np.where((ranks_ > 1) & (size > 0), wait_s, 0.0)


class BeyondNode(Record):
    """The scale-up links of a super-node, between accelerators of two of its nodes."""

    bandwidth: Figure[BytesPerSecond]
    latency: Figure[Seconds]


class ScaleUp(Record):
    """The fast links: NVLink, HCCS, Unified Bus, Infinity Fabric, or PCIe where there is nothing better."""

    kind: Literal["switch", "mesh"]
    """switch: any peer at the full rate. mesh: one link per pair, so that a group of g has (g - 1) links in use."""
    domain: Count
    """Accelerators that reach each other over these links; more than a node holds in a super-node."""
    bandwidth: Figure[BytesPerSecond]
    peer_bandwidth: Figure[BytesPerSecond]
    latency: Figure[Seconds]
    beyond_node: BeyondNode | None = None
    collectives: dict[Operation, Collective]
    compute_taken: Figure[Share]
    """Share of compute that a collective takes while it runs: its channels occupy compute units and memory rate."""

    @model_validator(mode="after")
    def _peer_within_total(self) -> ScaleUp:
        peer, total = self.peer_bandwidth.value, self.bandwidth.value
        if peer > total:
            raise ValueError(
                f"peer_bandwidth {human_rate(peer)} is above bandwidth {human_rate(total)}, which all share"
            )
        return self


class Nic(Record):
    """The port into the scale-out fabric."""

    bandwidth: Figure[BytesPerSecond]
    share: Figure[Share]
    """Attained by large transfers."""
    latency: Figure[Seconds]
    """Memory to memory between two ports, without switches."""


class HostLink(Record):
    """Copies between an accelerator and the memory of its host, as attained by large pinned copies."""

    h2d: Figure[BytesPerSecond]
    d2h: Figure[BytesPerSecond]


class Ddr(Record):
    """Host memory of the node."""

    capacity: Figure[Bytes]
    bandwidth: Figure[BytesPerSecond]


class Nvme(Record):
    """Local drives of the node, all together."""

    capacity: Figure[Bytes]
    read: Figure[BytesPerSecond]
    write: Figure[BytesPerSecond]


class Node(Record):
    """What a file of hardware_profiles/nodes says."""

    name: str
    accelerator: str
    """A file of hardware_profiles/accelerators."""
    accelerators: Count
    scale_up: ScaleUp
    nic: Nic | None = None
    host_link: HostLink
    ddr: Ddr
    nvme: Nvme | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _domain_fits(self) -> Node:
        domain, held = self.scale_up.domain, self.accelerators
        if domain % held:
            raise ValueError(f"scale_up.domain is {domain}, not a multiple of the node's {held} accelerators")
        if (domain > held) != (self.scale_up.beyond_node is not None):
            raise ValueError(
                f"scale_up.beyond_node goes with a domain larger than the node, found {domain} against {held}"
            )
        return self

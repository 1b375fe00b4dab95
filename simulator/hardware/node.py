"""Nodes: a server's accelerators, the links between them, and the memory and links that they share.

Every rate is one direction and per accelerator, except `ddr` and `nvme`, which are per node. Vendors often print both
directions added up.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.hardware.collective import Count, Formula, Operation, Timed
from simulator.hardware.figure import Figure, Record, Share
from simulator.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, human_rate

Units = Annotated[float, Field(gt=0, le=10_000)]


class BeyondNode(Record):
    """The scale-up links of a super-node, between accelerators of two of its nodes."""

    bandwidth: Figure[BytesPerSecond]
    latency: Figure[Seconds]
    ring_share: Figure[Share] | None = None
    """Bus bandwidth over link rate of large messages in rings through several nodes; None: as inside one."""


class Channels(Record):
    """Compute units that a transfer occupies: one for each channel that the library opens."""

    collective: Figure[Units]
    """Rings and trees inside a node."""
    in_switch: Figure[Units] | None = None
    """All-reduces that the switch reduces, between nodes too."""
    exchange: Figure[Units]
    """All-to-alls, and sends, inside a node."""
    between_nodes: Figure[Units]
    """Rings, trees and all-to-alls that leave the node."""
    send_between_nodes: Figure[Units]
    """Sends to one rank of another node."""


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
    curves: str | None = None
    """The part whose timings, measured/PART/collectives.yaml, say what collectives attain."""
    collectives: dict[Operation, Formula | Timed] = Field(default_factory=dict)
    """What the timings do not tell, or tell wrongly of this node: these go first."""
    in_switch: Figure[Share] | None = None
    """Bus bandwidth over link rate of large all-reduces that the switch itself reduces (NVLS); None: it does not."""
    one_shot: Figure[Seconds] | None = None
    """What a small all-reduce of an inference engine's own takes besides its bytes: one kernel in which ranks read each
    other's buffers. None: not known, and the library's are taken."""
    opposite: Figure[Share] | None = None
    """What a byte that a port moves the other way adds to its time, of what a byte takes the way that has more of them.
    Rates are those of even exchanges, which move as many each way. None: nothing, both ways are as fast as one."""
    compute_taken: Figure[Share]
    """Share of compute that a transfer takes while it runs, where `channels` or the number of units does not say."""
    channels: Channels | None = None

    @property
    def rings_beyond(self) -> Figure[Share] | None:
        """What rings through several nodes of a super-node attain of the links, where that is known."""
        return self.beyond_node.ring_share if self.beyond_node else None

    @model_validator(mode="after")
    def _peer_within_total(self) -> ScaleUp:
        peer, total = self.peer_bandwidth.value, self.bandwidth.value
        if peer > total:
            raise ValueError(
                f"peer_bandwidth {human_rate(peer)} is above bandwidth {human_rate(total)}, which all share"
            )
        return self


class OneSided(Record):
    """Rows that a port writes one by one into the memory of ranks in other nodes, as low-latency kernels have it do."""

    share: Figure[Share]
    """Of the port's rate."""
    start: Figure[Seconds]
    """From the launch of the kernel until the first row of all ranks is there."""


class Nic(Record):
    """The port into the scale-out fabric."""

    bandwidth: Figure[BytesPerSecond]
    share: Figure[Share]
    """Attained by large transfers from one accelerator to many."""
    ring_share: Figure[Share] | None = None
    """Attained by a library's rings and trees, where one port feeds one other; None: as much as any transfer."""
    latency: Figure[Seconds]
    """Memory to memory between two ports, without switches."""
    one_sided: OneSided | None = None
    """None: not known."""


class HostLink(Record):
    """Copies between an accelerator and the memory of its host, as attained by large ones."""

    h2d: Figure[BytesPerSecond]
    """To the accelerator, from pinned memory, which its copy engine reads by itself."""
    d2h: Figure[BytesPerSecond]
    both: Figure[BytesPerSecond] | None = None
    """Both directions at once, added up; None: each as fast as alone."""
    pageable_h2d: Figure[BytesPerSecond]
    """From memory that is not pinned: the driver copies it through a buffer of its own."""
    pageable_d2h: Figure[BytesPerSecond]
    latency: Figure[Seconds]
    """What a copy takes beside the time of its bytes."""


class Cpu(Record):
    """The node's own processors."""

    cores: Figure[Count]
    core_bandwidth: Figure[BytesPerSecond]
    """What a sweep of one core alone over host memory attains: bounded by the misses that it can have under way."""
    flops_per_s: dict[str, Figure[FlopsPerSecond]] = Field(default_factory=dict)
    """By number format, what products attain on all cores together; empty: not known."""


class Ddr(Record):
    """Host memory of the node."""

    capacity: Figure[Bytes]
    bandwidth: Figure[BytesPerSecond]
    """Of its channels."""
    share: Figure[Share]
    """Of that, what a sweep of all cores or copies of all accelerators attain."""
    domains: Figure[Count] | None = None
    """NUMA domains, each with its part of the channels; None: not known, taken to be one."""


class Nvme(Record):
    """Local drives of the node, in stripes: capacity and rates of all together."""

    drives: Figure[Count]
    capacity: Figure[Bytes]
    read: Figure[BytesPerSecond]
    """Of large blocks, with as many under way as it takes."""
    write: Figure[BytesPerSecond]
    read_latency: Figure[Seconds]
    """Of a small block, alone."""
    write_latency: Figure[Seconds]


class Node(Record):
    """What a file of hardware_profiles/nodes says."""

    name: str
    accelerator: str
    """A file of hardware_profiles/accelerators."""
    accelerators: Count
    scale_up: ScaleUp
    nic: Nic | None = None
    host_link: HostLink
    cpu: Cpu
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

"""Checkpoints on their way to storage, and what they take from the steps that go on meanwhile.

A checkpoint is copied from the cards into their hosts' memory, for which training stands still, and goes from there to
storage through the nodes' ports. Storage is taken to hang where the fabric is widest, so that all of it crosses every
level of the fabric. In the background it shares the ports with the transfers of steps, max-min fairly: its rate is
subtracted, and it takes no more than half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.forecast.scenario import Campaign
from simulator.forecast.simulate import SimulatedStep, simulate
from simulator.hardware.cluster import SCALE_UP_KINDS, Cluster
from simulator.program.job import Job
from simulator.program.training_step import TrainingStep

FAIR = 0.5
"""Share of a port that a background checkpoint takes at most, beside transfers that want all of it."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What a checkpoint takes: bytes in all, and seconds by the way they go."""

    bytes: float
    copy_s: float
    """From device memory into the host's, on the fullest rank."""
    transfer_s: float
    """From the hosts to storage."""
    back_s: float
    """From storage to the cards again, with nothing beside it."""
    background: bool
    """Whether training goes on during the transfer."""

    @property
    def stall_s(self) -> float:
        """How long training stands still for it."""
        return self.copy_s if self.background else self.copy_s + self.transfer_s

    @property
    def safe_s(self) -> float:
        """From its beginning until it is there."""
        return self.copy_s + self.transfer_s


def storage(asked: Campaign, cluster: Cluster, stored: tuple[float, float]) -> Storage:
    """Of *stored* bytes, in all and of one rank. A node's way out is what its ports attain, or their fair share; all
    nodes share the storage's rate.
    """
    whole, of_rank = stored
    node, rate, background = cluster.node, asked.storage_bandwidth, asked.checkpoint == "background"
    ports = float("inf")
    if node.nic is not None:
        ports = cluster.accelerators * node.nic.bandwidth.value * node.nic.share.value
    out_s, back_s = whole / min(rate, ports * FAIR if background else ports), whole / min(rate, ports)
    link = node.host_link
    return Storage(whole, of_rank / link.d2h.value, out_s, back_s + of_rank / link.h2d.value, background)


def pace_beside(job: Job, step: SimulatedStep, found: Storage, *, apart: bool) -> float:
    """Steps of *job*, of which *step* is one, on the pace of one alone while a background checkpoint is stored."""
    cluster = job.cluster
    if not found.background or all(level.kind in SCALE_UP_KINDS for level in cluster.levels):
        return 1.0
    busy = busy_ports(cluster, found.bytes / found.transfer_s / cluster.accelerators)
    slowed = simulate(
        TrainingStep(replace(job, cluster=busy)), step.micro_batches, behaviours=job.folding.behaviours, apart=apart
    )
    return min(1.0, step.step_ns / slowed.step_ns)


def busy_ports(cluster: Cluster, taken_bytes_per_s: float) -> Cluster:
    """*cluster* with what is left of its fabric while every accelerator's port sends so many payload bytes a second."""
    levels = []
    for level in cluster.levels:
        left = 1.0
        if level.kind not in SCALE_UP_KINDS:
            left = max(FAIR, 1.0 - taken_bytes_per_s / (level.bandwidth_bytes_per_s * level.share))
        rates = {name: left * getattr(level, name) for name in ("bandwidth_bytes_per_s", "peer_bandwidth_bytes_per_s")}
        levels.append(replace(level, **rates))
    return replace(cluster, levels=tuple(levels))

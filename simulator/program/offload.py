"""What of a job is in host memory or on drives, and who works on it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.program.activation_offload import Way

Tier = Literal["hbm", "ddr", "nvme"]


@dataclass(frozen=True, slots=True)
class OnDrives:
    """What drives hold of the optimizer, and how it is read and written (DeepSpeed's ZeRO-Infinity)."""

    share: float
    """Of the sub-groups, whose states are on the drives; the others' are in host memory."""
    sub_group_elements: int
    """A sub-group, which is updated at once, is full with so many."""
    reads_ahead: bool
    """Whether the next sub-group is read while one is updated."""
    writes_behind: bool
    """Whether one is written while the next is updated."""
    direct: bool
    """Whether shards of parameters go to cards without passing host memory."""
    block_bytes: float
    queue_depth: int
    """Blocks that a process has under way."""

    @property
    def buffered(self) -> int:
        """Sub-groups that have buffers in host memory: read, updated, written."""
        return 1 + self.reads_ahead + self.writes_behind


@dataclass(frozen=True, slots=True)
class ZenFlow:
    """A part of each gradient updated on the card at once, the rest by the host's cores after several micro-batches
    (DeepSpeed's ZenFlow; Lan et al., 2025): see `zenflow`.
    """

    chosen: float
    """Share of the columns of each matrix, those with the largest gradients."""
    beside: bool
    """Whether the cores update while the next micro-batches run; else the card waits for them."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Parts of a job that host memory or drives hold."""

    optimizer: float = 0.0
    """Share of the optimizer's states, which the host's cores update."""
    parameters: bool = False
    """Shards of parameters, with their gradients and the optimizer (FSDP2's `CPUOffloadPolicy`)."""
    activations: Way | None = None
    threads: int = 1
    """Cores that each rank's process updates with."""
    drives: OnDrives | None = None
    zenflow: ZenFlow | None = None
    shards: Tier = "hbm"
    """Where the bf16 shards of parameters are whose optimizer is on drives."""

    @property
    def updated_on_host(self) -> float:
        """Share of what is trained that the host's cores update."""
        return 1.0 if self.parameters else self.optimizer

    @property
    def lags(self) -> bool:
        """Whether the host's cores are an update behind, which runs beside the next step's passes."""
        return self.zenflow is not None and self.zenflow.beside

    @property
    def fetches(self) -> bool:
        """Whether shards of parameters come to the card before they are gathered."""
        return self.parameters or self.shards != "hbm"


NOTHING = Offload()

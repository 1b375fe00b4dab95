"""The mesh: how ranks are split among the parallel axes.

Ranks are numbered with tp fastest, then cp, dp_shard, dp_replicate, and pp slowest, as torchtitan lays out its device
mesh. Expert parallelism borrows from dp_shard x cp x tp: within one replica and pipeline stage, etp is the fastest axis
of the expert mesh, ep the next, and what remains shards each expert's parameters (expert FSDP, "efsdp"). Every pipeline
stage has the same groups, so they are given for the ranks of one stage.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

RankVector = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees of each axis. dp_replicate x dp_shard x cp x tp x pp is the number of ranks."""

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    etp: int = 1
    post_forward: int = 1
    """Consecutive ranks among which FSDP2 leaves parameters sharded between forward and backward; 1: no such groups."""

    def __post_init__(self) -> None:
        """Refuse degrees that are not positive and expert degrees that do not divide what they borrow from."""
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, found {getattr(self, field.name)}")
        if self.replica_ranks % (self.ep * self.etp):
            arithmetic = f"dp_shard({self.dp_shard}) * cp({self.cp}) * tp({self.tp}) = {self.replica_ranks}"
            raise ValueError(f"ep({self.ep}) * etp({self.etp}) must divide {arithmetic}")

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica within one pipeline stage."""
        return self.dp_shard * self.cp * self.tp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.dp_replicate * self.replica_ranks

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.pp * self.stage_ranks

    @property
    def fsdp(self) -> int:
        """Ranks among which parameters outside the experts are sharded: dp_shard x cp."""
        return self.dp_shard * self.cp

    @property
    def efsdp(self) -> int:
        """Ranks among which one expert's parameters are sharded."""
        return self.replica_ranks // (self.ep * self.etp)

    @property
    def data_parallel(self) -> int:
        """Ranks that each take their own sequences of the batch."""
        return self.dp_replicate * self.dp_shard

    def expert_rank(self) -> RankVector:
        """Each stage rank's place along ep: which experts it holds."""
        return self._within() // self.etp % self.ep

    def data_rank(self) -> RankVector:
        """For each stage rank, which part of the batch it has: all cp and tp ranks of a group have the same."""
        return np.arange(self.stage_ranks) // (self.tp * self.cp)

    def groups(self) -> dict[str, RankVector]:
        """For each axis along which ranks of a stage communicate, the group number of each rank."""
        rank, within = np.arange(self.stage_ranks), self._within()
        replica = rank // self.replica_ranks
        tensor = rank % self.tp
        expert_shard, expert_tensor = within // (self.etp * self.ep), within % self.etp
        whole = {
            "tp": rank // self.tp,
            "cp": rank // (self.tp * self.cp) * self.tp + tensor,
            "dp_shard": replica * self.tp + tensor,
            "dp_replicate": within,
            "ep": (replica * self.efsdp + expert_shard) * self.etp + expert_tensor,
            "efsdp": (replica * self.ep + self.expert_rank()) * self.etp + expert_tensor,
            "etp": rank // self.etp,
        }
        places = {"dp_shard": (within // self.tp, self.fsdp), "efsdp": (expert_shard, self.efsdp)}
        parts = {
            within_axis(axis): whole[axis] * (ranks // self.post_forward) + place // self.post_forward
            for axis, (place, ranks) in places.items()
            if 1 < self.post_forward < ranks
        }
        return whole | parts

    def _within(self) -> RankVector:
        return np.arange(self.stage_ranks) % self.replica_ranks


def within_axis(axis: str) -> str:
    """Name of the axis that parts of the groups along *axis* lie along."""
    return f"{axis} part"

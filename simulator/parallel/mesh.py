"""The mesh: how ranks are split among the parallel axes.

Ranks are numbered with tp fastest, then cp, dp_shard, dp_replicate, and pp slowest, as torchtitan lays out its device
mesh. Expert parallelism borrows from dp_shard x cp x tp: within one replica and pipeline stage, ep is the fastest
axis of the expert mesh and what remains shards each expert's parameters (expert FSDP, "efsdp").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RankVector = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees of each axis. Their product is the number of ranks."""

    dp_replicate: int = 1
    dp_shard: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        """Refuse degrees that are not positive and an ep that does not divide dp_shard."""
        for name in ("dp_replicate", "dp_shard", "ep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")
        if self.dp_shard % self.ep:
            raise ValueError(f"ep ({self.ep}) must divide dp_shard ({self.dp_shard})")

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.dp_replicate * self.dp_shard

    @property
    def efsdp(self) -> int:
        """Ranks among which one expert's parameters are sharded."""
        return self.dp_shard // self.ep

    @property
    def data_parallel(self) -> int:
        """Ranks that each take their own part of the batch."""
        return self.dp_replicate * self.dp_shard

    def expert_rank(self) -> RankVector:
        """Each rank's place along ep: which experts it holds."""
        return np.arange(self.ranks) % self.ep

    def groups(self) -> dict[str, RankVector]:
        """For each axis along which ranks communicate, the group number of each rank."""
        rank = np.arange(self.ranks)
        replica, shard = rank // self.dp_shard, rank % self.dp_shard
        return {
            "dp_shard": replica,
            "dp_replicate": shard,
            "ep": replica * self.efsdp + shard // self.ep,
            "efsdp": replica * self.ep + shard % self.ep,
        }

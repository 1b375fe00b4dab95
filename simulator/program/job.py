"""A job: one training step in terms of the floors below, before it is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, Layer
from simulator.model.operator import Workload
from simulator.model.recompute import Recompute, Stack
from simulator.model.split import share_model
from simulator.parallel.folding import Folding
from simulator.parallel.mesh import Mesh
from simulator.program.buckets import Buckets
from simulator.program.image_load import ImageLoad
from simulator.program.optimizer import Optimizer
from simulator.program.trained import Trained
from simulator.routing.outcome import Outcome

Loss = Literal["plain", "compiled", "chunked", "cut"]
Zero = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True)
class Job:
    """One training step."""

    architecture: Architecture
    cluster: Cluster
    mesh: Mesh
    folding: Folding
    """Behaviours of a stage's ranks; the same for every stage."""
    workload: Workload
    trained: Trained
    optimizer: Optimizer
    zero: Zero
    """What is sharded, and by what: 0 nothing (DDP); 1 the optimizer (Megatron-LM); 2 gradients as well (DeepSpeed);
    3 parameters as well (FSDP2)."""
    buckets: Buckets
    """Of gradients, under DDP and ZeRO-2."""
    schedule: str
    frozen_bytes: int
    reduce_bytes: int
    reshard_after_forward: bool
    prefetch: int
    recompute: Recompute
    loss: Loss
    exchange: str
    """How rows find their experts: a file of `exchanges/`."""
    per_expert: bool
    """Whether the products of a rank's experts are launched one by one, in a library's loop."""
    routing: Outcome | None
    """Rows of every expert slot in one micro-batch, and where the experts are; None without experts."""
    images: ImageLoad | None = None
    """None for a batch of text alone."""

    @property
    def expert_slots(self) -> int | None:
        """Experts that a rank holds, copies included; None without experts."""
        return None if self.routing is None else int(self.routing.placement.slots.shape[2])

    @property
    def gathered_bytes(self) -> int:
        """Bytes of an element of a parameter on its way between ranks, at least."""
        float8 = self.workload.float8
        return 1 if float8 is not None and float8.gathered else 2

    @property
    def stack(self) -> Stack:
        """What decides how its layers run again."""
        return Stack(self.zero != 1, self.workload.execution == "compiled", self.mesh.ep > 1)

    @property
    def own_architecture(self) -> Architecture:
        """The model as one rank of each tensor-parallel group holds it."""
        return share_model(self.architecture, self.mesh.tp, self.mesh.etp)

    def layers_of(self, stage: int) -> tuple[Layer, ...]:
        """The layers of a pipeline stage: as even as can be, the first stages one more where it does not divide."""
        layers, stages = self.architecture.layers, self.mesh.pp
        each, more = divmod(len(layers), stages)
        first = stage * each + min(stage, more)
        return layers[first : first + each + (stage < more)]

    def modules_of(self, stage: int) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each multi-token-prediction module of a stage: all are on the last."""
        return self.architecture.mtp_modules() if stage == self.mesh.pp - 1 else ()

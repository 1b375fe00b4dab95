"""What of a job is in host memory, and who works on it there."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.program.activation_offload import Way


@dataclass(frozen=True, slots=True)
class Offload:
    """Parts of a job that host memory holds."""

    optimizer: float = 0.0
    """Share of the optimizer's states, which the host's cores update."""
    parameters: bool = False
    """Shards of parameters, with their gradients and the optimizer (FSDP2's `CPUOffloadPolicy`)."""
    activations: Way | None = None
    threads: int = 1
    """Cores that each rank's process updates with."""

    @property
    def updated_on_host(self) -> float:
        """Share of what is trained that the host's cores update."""
        return 1.0 if self.parameters else self.optimizer


NOTHING = Offload()

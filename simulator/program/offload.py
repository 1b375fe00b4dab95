"""What of a job is in host memory, and who works on it there."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.program.activation_offload import Way


@dataclass(frozen=True, slots=True)
class Offload:
    """Parts of a job that host memory holds."""

    activations: Way | None = None


NOTHING = Offload()

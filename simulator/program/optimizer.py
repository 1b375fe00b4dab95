"""The optimizer of a job: its rule and the formats of what it works on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What updates the parameters."""

    name: str
    """Its rule, a file of `simulator/program/optimizers`."""
    stored_bytes: int
    """Of an element of what is updated, and of its gradient: of parameters, or of master weights."""
    moment_bytes: int
    """Of an element of a moment that is kept as a plain tensor; 0 for a rule without any."""
    foreach: bool = False
    """One kernel per arithmetic step over all tensors, instead of one kernel for all of it."""

    @property
    def sweep_bytes(self) -> int:
        """Bytes that pass memory for an element with two moments: all is read, all but the gradient written."""
        return 3 * self.stored_bytes + 4 * self.moment_bytes

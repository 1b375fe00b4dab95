"""The update of the parameters: what a rank owns of them, and the means with which an optimizer writes its tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from simulator.engine.task import Allocation
from simulator.model.operator import Kernel
from simulator.parallel.sharding import Matrix
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter
from simulator.program.fsdp import COMPUTE_BYTES, TENSORS_PER_KERNEL
from simulator.program.network import Network
from simulator.program.optimizer import Optimizer


@dataclass(frozen=True, slots=True)
class Owned:
    """What a rank updates of one tensor."""

    elements: float
    matrix: bool
    """Whether they are part of a hidden matrix, or of a stack of them."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the rank with the most to do updates."""

    tensors: tuple[Owned, ...]
    matrices: tuple[Matrix, ...] = ()
    """Whole hidden matrices that it is in charge of."""
    travelling: tuple[tuple[str, float], ...] = ()
    """By axis, elements of hidden matrices that it holds of all of them, and whose update is made elsewhere."""

    @property
    def elements(self) -> float:
        """All that it owns."""
        return sum(tensor.elements for tensor in self.tensors)


def share_out(owned: Ownership, share: float) -> tuple[Ownership, Ownership]:
    """What of *owned* the card updates, and what its host: the first tensors, until the host has the *share* of all.

    So does Megatron-LM's `HybridDeviceOptimizer`.
    """
    if not share:
        return owned, Ownership(())
    count, moved = 0, 0.0
    for tensor in owned.tensors:
        if moved >= share * owned.elements:
            break
        count, moved = count + 1, moved + tensor.elements
    return replace(owned, tensors=owned.tensors[count:]), Ownership(owned.tensors[:count])


@dataclass(frozen=True, slots=True)
class Update:
    """One update, about to be written."""

    emitter: Emitter
    costs: Costs
    network: Network
    optimizer: Optimizer
    ownership: Ownership

    @property
    def owned(self) -> tuple[Owned, ...]:
        """The tensors that the rank updates."""
        return self.ownership.tensors

    @property
    def dtype(self) -> str:
        """Format of what is updated."""
        return "bf16" if self.optimizer.stored_bytes == COMPUTE_BYTES else "fp32"

    def sweep(
        self,
        name: str,
        tensors: Collection[Owned],
        kind: str,
        element_bytes: float,
        *,
        kernels: int = 1,
        scratch: Sequence[Allocation] = (),
        host_s: float | None = None,
    ) -> None:
        """One pass of kernels of *kind* over *tensors*, *element_bytes* for each element, with temporaries *scratch*.

        A multi-tensor pass is *kernels* for every list of tensors; *host_s* where something else than launches takes
        the host's time.
        """
        elements = sum(tensor.elements for tensor in tensors)
        priced = self.costs.price(Kernel(kind, 0.0, float(elements * element_bytes), dtype=self.dtype))
        priced = replace(priced, launches=kernels * max(1, len(tensors) // TENSORS_PER_KERNEL))
        host_ns = None if host_s is None else round(host_s * 1e9)
        self.emitter.compute(name, kind, priced, allocates=scratch, host_ns=host_ns)
        self.emitter.release(*(item.key for item in scratch if self.emitter.holds(item.key)))

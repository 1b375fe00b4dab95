"""What ZenFlow adds to ZeRO-2 on the card: a part of every gradient, which updates its weights at once.

Mechanism as in DeepSpeed @f6572460 (`zenflow_stage_1_and_2.py`, `ops/adam/zenflow_torch_adam.py`; Lan et al., 2025):
gradients of matrices go transposed into the bucket, so that columns lie together; of what it owns of a summed bucket a
rank picks the chosen columns and broadcasts them to all others. Every rank has those of all ranks then, and updates
them in bf16 with moments in bf16 (AdamW, list by list), in the same micro-batch. In the last micro-batch of an update
interval they are kept, with the weights that they belong to, since the host's new weights come first: those columns
are put back over them and updated then. Whole vectors are chosen, which are few.

Columns are chosen anew once an epoch (`select_strategy: auto`), which no ordinary step does.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.operator import Kernel
from simulator.program.costs import Costs
from simulator.program.emitter import Emitter, allocation
from simulator.program.fsdp import COMPUTE_BYTES, REDUCE, TENSORS_PER_KERNEL
from simulator.program.network import Network
from simulator.program.optimizers.adamw import FOREACH_STEPS

_PASS_BYTES = 2 * COMPUTE_BYTES
"""Read and written, of an element that is copied."""
_SWEEP_BYTES = 7 * COMPUTE_BYTES
"""Weight, gradient and two moments read, all but the gradient written."""
_KEPT = "zenflow.kept"


def moments(chosen: float, trained: float) -> list[float]:
    """Bytes of both moments of the *chosen* share of *trained* elements, which every rank has whole."""
    return [chosen * trained * COMPUTE_BYTES] * 2


class ChosenColumns:
    """Writes the work on the *chosen* share of what *ranks* reduce together."""

    def __init__(self, emitter: Emitter, costs: Costs, network: Network, chosen: float, ranks: int) -> None:
        self._emitter = emitter
        self._costs = costs
        self._network = network
        self._chosen = chosen
        self._ranks = ranks
        self._kept: list[tuple[float, int]] = []
        """Elements and tensors of each bucket whose chosen columns wait for the host's weights."""

    def transpose(self, size: float) -> None:
        """Bring a gradient of *size* bytes into the order of its columns."""
        self._pass("transpose gradient", "transpose", size / COMPUTE_BYTES, 1)

    def take(self, elements: float, tensors: int, *, last: bool) -> None:
        """Deal with the chosen columns of a summed bucket of so many *elements* of so many *tensors*."""
        chosen = self._chosen * elements
        self._pass("pick columns", "gather", chosen / self._ranks, tensors)
        self._pass("columns to buffer", "copy", chosen / self._ranks, tensors)
        transfer = self._network.broadcast("dp_shard", chosen * COMPUTE_BYTES)
        if transfer is not None:
            deps = (self._emitter.last,)
            position = self._emitter.transfer("broadcast columns", REDUCE, transfer.kind, transfer, deps=deps)
            self._emitter.await_(position)
        self._pass("columns from buffer", "copy", chosen, tensors)
        if last:
            self._pass("keep weights of columns", "gather", chosen, tensors)
            self._emitter.take(allocation(f"{_KEPT} {len(self._kept)}", "gradients", chosen * _PASS_BYTES))
            self._kept.append((chosen, tensors))
        else:
            self._update(chosen, tensors)

    def settle(self) -> None:
        """Update what was kept, once the host's weights are there."""
        for number, (chosen, tensors) in enumerate(self._kept):
            self._pass("put weights of columns back", "copy", chosen, tensors)
            self._update(chosen, tensors)
            self._emitter.release(f"{_KEPT} {number}")
        self._kept = []

    def _update(self, chosen: float, tensors: int) -> None:
        """Pick weights, update them, and put them back."""
        self._pass("pick weights", "gather", chosen, tensors)
        priced = self._costs.price(Kernel("optimizer_foreach", 0.0, chosen * _SWEEP_BYTES))
        launches = FOREACH_STEPS * max(1, tensors // TENSORS_PER_KERNEL)
        self._emitter.compute("update columns", "optimizer_foreach", replace(priced, launches=launches))
        self._pass("put weights", "scatter_put", chosen, tensors)

    def _pass(self, name: str, kind: str, elements: float, tensors: int) -> None:
        """Copy so many elements, one kernel for each tensor."""
        kernel = Kernel(kind, 0.0, elements * _PASS_BYTES, launches=tensors)
        self._emitter.compute(name, kind, self._costs.price(kernel))

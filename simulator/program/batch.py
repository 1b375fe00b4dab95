"""How a micro-batch reaches the ranks of a tensor-parallel group: each reads it, or one does and broadcasts it.

Megatron-LM broadcasts (`get_batch_on_this_tp_rank` in megatron/training/utils.py at 00caa53): one call for each tensor,
of whole sequences before context parallelism cuts them, when a forward pass of the model's first or last layers begins.
Nothing waits for it but the compute stream. Of the tensors an attention mask alone is large, and it is held until the
pass has ended. With packed or hybrid sequences lengths are sent that the host waits for; those are not here, nor is
what ranks copy from their hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.program.costs import Priced
from simulator.program.emitter import Emitter, allocation
from simulator.program.network import Network

_INT64_BYTES, _FP32_BYTES, _BOOL_BYTES = 8, 4, 1


@dataclass(frozen=True, slots=True)
class BatchWay:
    """What ranks do for a batch."""

    broadcast: bool
    """One of each tensor-parallel group reads it."""
    mask: bool
    """It has an attention mask of all pairs of tokens."""


class Batch:
    """Writes what brings micro-batches of sequences of *lengths* tokens to the ranks of a stage."""

    def __init__(self, way: BatchWay, lengths: tuple[int, ...], emitter: Emitter, network: Network) -> None:
        self._way = way
        self._lengths = lengths
        self._emitter = emitter
        self._network = network

    def begin(self, *, first: bool, last: bool) -> None:
        """Bring what the model's *first* and *last* layers want; the next task of the compute stream waits for it."""
        if self._way.mask and (first or last):
            held = allocation(self._key, "workspace", self._mask_bytes)
            self._emitter.compute("attention mask", "copy", Priced(0, 0, "measured"), allocates=[held])
        if self._way.broadcast:
            for name, size in self._wanted(first=first, last=last):
                self._broadcast(name, size)

    def end(self) -> None:
        """Give up the mask."""
        if self._emitter.holds(self._key):
            self._emitter.release(self._key)

    @property
    def _key(self) -> str:
        return f"{self._emitter.micro_batch} attention mask"

    @property
    def _mask_bytes(self) -> float:
        return float(_BOOL_BYTES * sum(n * n for n in self._lengths))

    def _wanted(self, *, first: bool, last: bool) -> Iterator[tuple[str, float]]:
        """Tensors and their bytes, in order: int64 but for the loss's weights and the mask."""
        tokens = float(sum(self._lengths))
        if first:
            yield "tokens", _INT64_BYTES * tokens
        if last:
            yield "labels", _INT64_BYTES * tokens
            yield "loss mask", _FP32_BYTES * tokens
        if self._way.mask and (first or last):
            yield "attention mask", self._mask_bytes
        if first:
            yield "positions", _INT64_BYTES * tokens

    def _broadcast(self, name: str, size: float) -> None:
        emitter, transfer = self._emitter, self._network.broadcast("tp", size)
        if transfer is not None:
            deps = (emitter.last,) if emitter.tasks else ()
            emitter.await_(emitter.transfer(f"broadcast {name}", "tp", transfer.kind, transfer, deps=deps))

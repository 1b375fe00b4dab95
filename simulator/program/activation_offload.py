"""Saved activations in host memory: what autograd keeps is copied out in the forward pass, and back for the backward.

Two ways, as they run. *save_on_cpu* is PyTorch's `torch.autograd.graph.save_on_cpu(pin_memory=True)`: every tensor that
a node of the graph keeps is copied on the compute stream, weights among them and a tensor of two nodes twice, and the
host waits for each copy out. *streamed* is torchtune's `OffloadActivations`: a stream of its own copies beside compute,
the last few tensors stay on the card until their copies are through, weights stay for good, and a tensor comes back
when its node asks for it. A layer that runs again as a whole keeps its input alone, so that this is what travels.

Left out: that a first step has to pin the memory which later ones find pinned, and copies of what has a few bytes a
token, such as rotary tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simulator.engine.task import Quantity
from simulator.program.emitter import Emitter, tensors
from simulator.program.host_memory import COPY_IN, COPY_OUT, HostMemory, pinned
from simulator.program.step import Step

Way = Literal["save_on_cpu", "streamed"]
STASHED = 5
"""Tensors that stay on the card while their copies are under way (`max_fwd_stash_size`)."""


class ActivationOffload:
    """Writes the copies of what steps keep."""

    def __init__(self, emitter: Emitter, host: HostMemory, way: Way) -> None:
        self._emitter = emitter
        self._host = host
        self._waits = way == "save_on_cpu"
        self._away: dict[str, tuple[Quantity, ...]] = {}
        """Bytes of the tensors that were copied out, by key."""
        self._stash: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Position of the copy and what is still held on the card, by key."""

    def of_step(self, step: Step) -> tuple[Quantity, ...]:
        """The tensors that *step* has copied, one for each node that keeps it."""
        kept = step.saved
        nodes = [*kept.nodes, *(1 for _ in kept.tensors[len(kept.nodes) :])]
        if not self._waits:
            return kept.tensors
        return (*(size for size, n in zip(kept.tensors, nodes, strict=True) for _ in range(n)), *step.matrices)

    def on_device(self, step: Step) -> tuple[Quantity, ...]:
        """The tensors that are there again for the backward pass of *step*."""
        return (*step.saved.tensors, *(step.matrices if self._waits else ()))

    def put(self, key: str, name: str, sizes: Sequence[Quantity], held: tuple[str, ...]) -> None:
        """Copy tensors of *sizes* out behind the task written last, and free what is *held* of them on the card."""
        if not sizes:
            return
        self._away[key] = tuple(sizes)
        position = self._emitter.transfer(
            f"{name} out",
            COPY_OUT,
            COPY_OUT,
            self._host.out(sum(sizes), copies=len(sizes)),
            deps=(self._emitter.last,),
            allocates=[pinned(_on_host(key), "saved activations", sizes)],
            launches=len(sizes),
        )
        if self._waits:
            self._emitter.block_host()
            self._emitter.await_(position)
            self._emitter.release(*held)
            return
        self._stash[key] = position, held
        while len(self._stash) > 1 and sum(len(self._away[known]) for known in self._stash) > STASHED:
            self._evict(next(iter(self._stash)))

    def fetch(self, key: str, name: str, kind: str, wanted: Sequence[Quantity] | None = None) -> None:
        """Have what was put under *key* on the card again, as tensors of *wanted* sizes where they are not the same."""
        if key not in self._away:
            return
        sizes = self._away.pop(key)
        if key in self._stash:
            self._stash.pop(key)
            self._emitter.release(_on_host(key))
            return
        position = self._emitter.transfer(
            f"{name} in",
            COPY_IN,
            COPY_IN,
            self._host.into(sum(sizes), copies=len(sizes)),
            deps=(self._emitter.last,) if self._waits else (),
            allocates=[tensors(key, kind, sizes if wanted is None else wanted)],
            launches=len(sizes),
        )
        self._emitter.release(_on_host(key))
        self._emitter.await_(position)

    def _evict(self, key: str) -> None:
        position, held = self._stash.pop(key)
        self._emitter.await_(position)
        self._emitter.release(*held)


def _on_host(key: str) -> str:
    return f"{key} on host"

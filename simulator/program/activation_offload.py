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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.engine.task import Allocation, Quantity
from simulator.model.recompute import Away
from simulator.program.emitter import Emitter, tensors
from simulator.program.host_memory import COPY_IN, COPY_OUT, HostMemory, pinned
from simulator.program.step import Step

Way = Literal["save_on_cpu", "streamed"]
STASHED = 5
"""Tensors that stay on the card while their copies are under way (`max_fwd_stash_size`)."""
SAVED = "saved activations"


@dataclass(frozen=True, slots=True)
class Parcel:
    """Tensors that travel together."""

    name: str
    sizes: tuple[Quantity, ...]
    """Bytes of each that is copied."""
    wanted: tuple[Quantity, ...]
    """Bytes of each that is on the card when they are back."""
    kind: str = SAVED


class ActivationOffload:
    """Writes the copies of what steps keep."""

    everything = True
    """Whether all that layers keep goes, and not what a plan says alone."""

    def __init__(self, emitter: Emitter, host: HostMemory, way: Way) -> None:
        self._emitter = emitter
        self._host = host
        self._waits = way == "save_on_cpu"
        self._away: dict[str, Parcel] = {}
        """What was copied out, by key."""
        self._stash: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Position of the copy and what is still held on the card, by key."""

    def parcel(self, step: Step) -> Parcel:
        """What *step* keeps: the tensors that it has copied, one for each node that keeps it."""
        kept = step.saved
        if not self._waits:
            return Parcel(step.name, kept.tensors, kept.tensors, step.saved_kind)
        nodes = [*kept.nodes, *(1 for _ in kept.tensors[len(kept.nodes) :])]
        copied = (size for size, n in zip(kept.tensors, nodes, strict=True) for _ in range(n))
        return Parcel(step.name, (*copied, *step.matrices), (*kept.tensors, *step.matrices), step.saved_kind)

    def enter_forward(self, tag: str) -> None:
        """The forward pass of the layer *tag* is written from here on."""

    def enter_backward(self, tag: str) -> None:
        """Its backward pass is written from here on."""

    def stay(self, micro_batch: int | None) -> None:
        """The backward pass of *micro_batch* is woven into the next pass to be written."""

    def moved(self, new: Mapping[int, int]) -> None:
        """Tasks are at *new* positions."""

    def put(self, key: str, parcel: Parcel, held: tuple[str, ...]) -> None:
        """Copy *parcel* out behind the task written last, and free what is *held* of it on the card."""
        if not parcel.sizes:
            return
        self._away[key] = parcel
        position = self._send(parcel, pinned(on_host(key), SAVED, parcel.sizes))
        if self._waits:
            self._emitter.block_host()
            self._emitter.await_(position)
            self._emitter.release(*held)
            return
        self._stash[key] = position, held
        while len(self._stash) > 1 and sum(len(self._away[known].sizes) for known in self._stash) > STASHED:
            self._evict(next(iter(self._stash)))

    def fetch(self, key: str) -> None:
        """Have what was put under *key*, if anything was, on the card again."""
        if key not in self._away:
            return
        parcel = self._away.pop(key)
        if key in self._stash:
            self._stash.pop(key)
            self._emitter.release(on_host(key))
            return
        self._emitter.await_(self._bring(key, parcel, (self._emitter.last,) if self._waits else ()))

    def _send(self, parcel: Parcel, allocated: Allocation) -> int:
        """Copy *parcel* to what is *allocated* of the host behind the task written last; the copy's position."""
        return self._emitter.transfer(
            f"{parcel.name} out",
            COPY_OUT,
            COPY_OUT,
            self._host.out(sum(parcel.sizes), copies=len(parcel.sizes)),
            deps=(self._emitter.last,),
            allocates=[allocated],
            launches=len(parcel.sizes),
        )

    def _bring(self, key: str, parcel: Parcel, deps: tuple[int, ...]) -> int:
        """Copy *parcel* back behind *deps* and free what the host has of it; the copy's position."""
        position = self._emitter.transfer(
            f"{parcel.name} in",
            COPY_IN,
            COPY_IN,
            self._host.into(sum(parcel.sizes), copies=len(parcel.sizes)),
            deps=deps,
            allocates=[tensors(key, parcel.kind, parcel.wanted)],
            launches=len(parcel.sizes),
        )
        self._emitter.release(on_host(key))
        return position

    def _evict(self, key: str) -> None:
        position, held = self._stash.pop(key)
        self._emitter.await_(position)
        self._emitter.release(*held)


@dataclass(frozen=True, slots=True)
class Sent:
    """What of a layer goes to host memory, and by whom."""

    offload: ActivationOffload
    away: Away


def sent_by(offload: ActivationOffload | None, steps: Sequence[Step], away: Away) -> Sent | None:
    """What of a layer of *steps* goes: all that it keeps, or what a plan has *away*."""
    if offload is None:
        return None
    return Sent(offload, Away(frozenset(range(len(steps))), layer_input=True) if offload.everything else away)


def on_host(key: str) -> str:
    """Key of the copy in host memory of what has *key* on the card."""
    return f"{key} on host"

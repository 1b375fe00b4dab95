"""Swap of chosen operators' tensors: copied out beside compute, freed before a set layer, back ahead of their use.

As Megatron-LM's fine-grained offloading and Transformer Engine's do it: copies run on a stream each way from pinned
memory that is taken once (an arena, so that nothing is rounded up). A layer's tensors leave while the next layers
work, of which *in_flight* may begin before the copies are through: then compute waits, and the memory is free. When the
backward pass of a layer begins, the tensors of the *prefetch* layers behind it are sent for; their memory is taken at
once. What is still on the card when it is needed does not come back, it never left.

Beside a backward pass that is woven into a forward pass, tensors of its micro-batch which have not left stay: it begins
with them.

Every wait is for a copy that was issued before, so that no two of them wait for each other: a schedule that asks too
much of the link is slow, never stuck.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.program.activation_offload import SAVED, ActivationOffload, Parcel, on_host
from simulator.program.emitter import Emitter
from simulator.program.host_memory import HostMemory, host_memory
from simulator.program.swap import Swap


class ActivationSwap(ActivationOffload):
    """Writes the copies of one program."""

    everything = False

    def __init__(self, emitter: Emitter, host: HostMemory, swap: Swap) -> None:
        super().__init__(emitter, host, "streamed")
        self._swap = swap
        self._keys: dict[int, dict[str, list[str]]] = {}
        """By micro-batch and layer, what was copied out, in the order of the forward pass."""
        self._out: dict[str, int] = {}
        """Position of the copy out, by key."""
        self._coming: dict[str, int] = {}
        """Position of the copy back in, by key."""
        self._layer = ""
        self._staying: int | None = None

    def stay(self, micro_batch: int | None) -> None:
        """Keep what of *micro_batch* has not left."""
        self._staying = micro_batch

    def moved(self, new: Mapping[int, int]) -> None:
        """Find copies at their *new* positions."""
        for positions in (self._out, self._coming):
            positions.update((key, new.get(position, position)) for key, position in positions.items())
        self._stash = {key: (new.get(position, position), held) for key, (position, held) in self._stash.items()}

    def enter_forward(self, tag: str) -> None:
        """What layers before the last few have sent is gone by now."""
        self._layer = tag
        layers = dict.fromkeys(self._layer_of(key) for key in self._stash)
        leaving = [layer for layer in layers if not layer.startswith(f"{self._staying} ")]
        for layer in leaving[: len(leaving) - self._swap.in_flight]:
            for key in [key for key in self._stash if self._layer_of(key) == layer]:
                self._evict(key)

    def put(self, key: str, parcel: Parcel, held: tuple[str, ...]) -> None:
        """Copy *parcel* out behind the task written last; what is *held* of it is free a few layers later."""
        if not parcel.sizes:
            return
        position = self._send(parcel, host_memory(on_host(key), SAVED, parcel.sizes))
        self._away[key], self._out[key], self._stash[key] = parcel, position, (position, held)
        self._keys.setdefault(self._emitter.micro_batch, {}).setdefault(self._layer, []).append(key)

    def enter_backward(self, tag: str) -> None:
        """Send for what *tag* and the next layers of the backward pass need."""
        layers = self._keys.get(self._emitter.micro_batch, {})
        own = layers.pop(tag, [])
        ahead = [key for layer in list(layers)[::-1][: self._swap.prefetch] for key in reversed(layers[layer])]
        for key in (*own, *ahead):
            if key not in self._stash and key not in self._coming:
                self._send_for(key)

    def fetch(self, key: str) -> None:
        """Have what was put under *key*, if anything was, on the card again."""
        if key not in self._away:
            return
        del self._away[key], self._out[key]
        if key in self._stash:
            del self._stash[key]
            self._emitter.release(on_host(key))
            return
        self._emitter.await_(self._coming.pop(key))

    def _send_for(self, key: str) -> None:
        self._coming[key] = self._bring(key, self._away[key], (self._emitter.last, self._out[key]))

    def _layer_of(self, key: str) -> str:
        return key.rsplit(".", 2)[0] if not key.endswith(".input") else key.removesuffix(".input")

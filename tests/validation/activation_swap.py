"""Swap of saved tensors in a real step: out beside the forward pass, back ahead of the backward pass of their layer.

`torch.autograd.graph.saved_tensors_hooks` around chosen parts of each decoder layer catch what they save. Copies go to
pinned buffers, kept from step to step, on one stream each way. When a layer's forward pass begins, compute waits for
the copies of the layers before the last one, whose tensors are then dropped; when its backward pass begins, the tensors
of the layer behind are sent for. A tensor of several nodes travels once.

Parts: "attention" (the core, and the output projection that reads its result), "down", "mlp" (all of the feed-forward
part), "layer_input" (what a checkpoint around the layer keeps).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

LEAST_BYTES = 2**22
"""Smaller tensors, such as rotary tables and statistics of attention, stay."""


@dataclass(slots=True, eq=False)
class Entry:
    """One storage that travels."""

    flat: torch.Tensor | None
    """Its bytes on the card."""
    host: torch.Tensor
    out: torch.cuda.Event
    back: torch.cuda.Event | None = None
    readers: int = 0
    """Nodes of the graph that have still to read it."""


@dataclass(slots=True)
class Layer:
    """What a layer has sent in this step, by storage."""

    entries: dict[int, Entry] = field(default_factory=dict)


class Swapper:
    """Swaps *parts* of *layers*; see the module."""

    def __init__(self, layers: Sequence[torch.nn.Module], parts: Sequence[str], prefetch: int = 1) -> None:
        self._layers = [Layer() for _ in layers]
        self._prefetch = prefetch
        self._now = 0
        self._out, self._in = torch.cuda.Stream(), torch.cuda.Stream()
        self._pool: dict[int, list[tuple[torch.Tensor, torch.cuda.Event | None]]] = {}
        for number, module in enumerate(layers):
            inner = [module.self_attn.o_proj] if "attention" in parts else []
            inner += [module.mlp.down_proj] if "down" in parts else []
            inner += [module.mlp] if "mlp" in parts else []
            for part in inner:
                part.forward = self._caught(part.forward)
            if "layer_input" in parts:
                module.__class__.__call__ = _caught_call(module.__class__.__call__)
                module.enter_swap, module.swapper = functools.partial(self._enter_forward, number), self
            module.register_forward_pre_hook(functools.partial(self._enter_forward, number))
            module.register_forward_hook(functools.partial(self._behind_forward, number))
        self._attention = torch.nn.functional.scaled_dot_product_attention
        if "attention" in parts:
            torch.nn.functional.scaled_dot_product_attention = self._caught(self._attention)

    def close(self) -> None:
        """Leave the library as it was."""
        torch.nn.functional.scaled_dot_product_attention = self._attention

    def _caught(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with saved_tensors_hooks(self.pack, self.unpack):
                return function(*args, **kwargs)

        return run

    def _enter_forward(self, number: int, *_: Any) -> None:
        self._now = number
        for layer in self._layers[: max(0, number - 1)]:
            for entry in layer.entries.values():
                if entry.flat is not None and entry.back is None:
                    torch.cuda.current_stream().wait_event(entry.out)
                    entry.flat = None

    def _behind_forward(self, number: int, _module: Any, _args: Any, result: Any) -> None:
        hidden = result[0] if isinstance(result, tuple) else result
        if hidden.requires_grad:
            hidden.register_hook(functools.partial(self._enter_backward, number))

    def _enter_backward(self, number: int, _gradient: torch.Tensor) -> None:
        for layer in self._layers[max(0, number - self._prefetch) : number + 1][::-1]:
            for entry in reversed(layer.entries.values()):
                if entry.flat is None and entry.readers:
                    self._send_for(entry)
        if number + 1 < len(self._layers):
            self._forget(self._layers[number + 1])

    def _send_for(self, entry: Entry) -> None:
        entry.flat = torch.empty(entry.host.numel(), dtype=torch.uint8, device="cuda")
        self._in.wait_stream(torch.cuda.current_stream())
        self._in.wait_event(entry.out)
        with torch.cuda.stream(self._in):
            entry.flat.copy_(entry.host, non_blocking=True)
            entry.back = torch.cuda.Event()
            entry.back.record()

    def _forget(self, layer: Layer) -> None:
        """Its backward pass is through: the buffers are free once the copies that read them are."""
        for entry in layer.entries.values():
            self._pool.setdefault(entry.host.numel(), []).append((entry.host, entry.back or entry.out))
        layer.entries.clear()

    def finish(self) -> None:
        """The step's backward pass is through."""
        for layer in self._layers:
            self._forget(layer)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Send *tensor* out; what stands for it in the graph until then."""
        storage = tensor.untyped_storage()
        if isinstance(tensor, torch.nn.Parameter) or storage.nbytes() < LEAST_BYTES or not tensor.is_cuda:
            return tensor
        if tensor._base is not None and isinstance(tensor._base, torch.nn.Parameter):
            return tensor
        entries = self._layers[self._now].entries
        known = entries.get(storage.data_ptr())
        if known is None:
            flat = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
            known = entries[storage.data_ptr()] = self._send(flat)
        known.readers += 1
        return known, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

    def _send(self, flat: torch.Tensor) -> Entry:
        free = self._pool.get(flat.numel())
        host, used = free.pop() if free else (torch.empty(flat.numel(), dtype=torch.uint8, pin_memory=True), None)
        self._out.wait_stream(torch.cuda.current_stream())
        if used is not None:
            self._out.wait_event(used)
        event = torch.cuda.Event()
        with torch.cuda.stream(self._out):
            host.copy_(flat, non_blocking=True)
            event.record()
        return Entry(flat, host, event)

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor, on the card."""
        if isinstance(packed, torch.Tensor):
            return packed
        entry, dtype, shape, stride, offset = packed
        if entry.flat is None:
            self._send_for(entry)
        if entry.back is not None:
            torch.cuda.current_stream().wait_event(entry.back)
        entry.readers -= 1
        found = torch.empty(0, dtype=dtype, device="cuda").set_(entry.flat.untyped_storage(), offset, shape, stride)
        if not entry.readers:
            entry.flat = None
        return found


def _caught_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Around a checkpointed layer's call, so that the checkpoint's own hooks are inside."""
    if hasattr(call, "caught"):
        return call

    @functools.wraps(call)
    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        swapper = vars(module).get("swapper")
        if swapper is None:
            return call(module, *args, **kwargs)
        module.enter_swap()
        with saved_tensors_hooks(swapper.pack, swapper.unpack):
            return call(module, *args, **kwargs)

    run.caught = True  # type: ignore[attr-defined]
    return run

"""What PyTorch's caching allocator does while a model is made and trained, written down line by line.

The lines are those of `tests/allocations/`, so that `CachingAllocator` can be held against them: `take BYTES STREAM
[segment BYTES that it took from the device] [by the Python functions, innermost first]`; `give NUMBER` of an earlier
take, counted from 0; `asked NUMBER` where it was given up earlier than that, because another stream still used it;
`shrink BYTES` where a segment went back to the device; `mark NAME` where a step begins.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

FRAMES = 8
"""Python functions of an allocation that are written down. Work of the backward pass has none but its hooks."""


class History:
    """The allocations of this process's device from its making to `write`."""

    def __init__(self) -> None:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", clear_history=True)
        self._marks: list[tuple[float, str]] = []

    def mark(self, name: str) -> None:
        """Something called *name* begins now."""
        torch.cuda.synchronize()
        self._marks.append((time.time() * 1e6, name))

    def write(self, path: Path) -> None:
        """Stop recording and write *path*, a gzip of lines."""
        torch.cuda.synchronize()
        events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        torch.cuda.memory._record_memory_history(None)
        with gzip.open(path, "wt") as file:
            file.writelines(f"{line}\n" for line in lines(events, self._marks))


def lines(events: list[dict[str, Any]], marks: list[tuple[float, str]]) -> Iterator[str]:
    """*events* of a memory snapshot as lines, with *marks* (microseconds, name) between them."""
    numbers: dict[int, int] = {}
    streams = {0: "compute"}
    taken, segment, waiting = 0, 0, list(marks)
    for position, event in enumerate(events):
        while waiting and waiting[0][0] <= event["time_us"]:
            yield f"mark {waiting.pop(0)[1]}"
        action, address = event["action"], event["addr"]
        if action == "segment_alloc":
            segment = event["size"]
        elif action == "segment_free":
            yield f"shrink {event['size']}"
        elif action == "alloc":
            numbers[address] = taken
            taken += 1
            stream = streams.setdefault(event["stream"], f"stream{len(streams)}")
            grown = f" segment {segment}" if segment else ""
            yield f"take {event['size']} {stream}{grown}{_by(event.get('frames', ()))}"
            segment = 0
        elif action == "free_completed" and address in numbers:
            yield f"give {numbers.pop(address)}"
        elif action == "free_requested" and address in numbers and not _at_once(events, position):
            yield f"asked {numbers[address]}"


def _at_once(events: list[dict[str, Any]], position: int) -> bool:
    """Whether the block that is given up at *position* is free right after."""
    after = events[position + 1] if position + 1 < len(events) else {}
    return after.get("action") == "free_completed" and after["addr"] == events[position]["addr"]


def _by(frames: Any) -> str:
    names = [f"{Path(frame['filename']).stem}:{frame['name']}" for frame in frames[:FRAMES]]
    return " by " + " ".join(name.replace(" ", "_") for name in names) if names else ""

"""What made a peak: the tensors that were held at it, those taken by tasks of one name together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.engine.ledger import TierLedger, of_behaviour
from simulator.engine.task import Allocation, Task


@dataclass(slots=True)
class Holder:
    """Tensors of a kind that tasks of one name took."""

    kind: str
    task: str
    """Empty for what is resident."""
    phase: str
    """Of the first of those tasks; "resident" for what is there before the step."""
    first_layer: int | None
    last_layer: int | None
    tensors: int = 0
    bytes: float = 0.0

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def holders(
    program: Sequence[Task], resident: Sequence[Allocation], ledger: TierLedger, behaviour: int
) -> list[Holder]:
    """What *behaviour* held at the peak of *ledger*, which *program* and *resident* memory made; largest first."""
    found: dict[tuple[str, str, str], Holder] = {}
    for allocation, task in _held(program, resident, ledger.tier, int(ledger.peak_entry[behaviour])):
        size = of_behaviour(allocation.bytes, behaviour)
        if size <= 0:
            continue
        name, phase = (task.name, task.phase) if task is not None else ("", "resident")
        layer = task.layer if task is not None and task.layer >= 0 else None
        one = found.setdefault((allocation.kind, name, phase), Holder(allocation.kind, name, phase, layer, layer))
        one.tensors += len(allocation.pieces) or 1
        one.bytes += size
        if layer is not None:
            one.first_layer = min(layer, layer if one.first_layer is None else one.first_layer)
            one.last_layer = max(layer, layer if one.last_layer is None else one.last_layer)
    return sorted(found.values(), key=lambda one: -one.bytes)


def _held(
    program: Sequence[Task], resident: Sequence[Allocation], tier: str, entry: int
) -> Iterator[tuple[Allocation, Task | None]]:
    """What is held in *tier* behind that *entry* of its ledger, and the task that took it."""
    held: dict[str, tuple[Allocation, Task | None]] = {}
    number = 0
    for position, allocation in enumerate(allocation for allocation in resident if allocation.tier == tier):
        held[f"resident {position}"] = allocation, None
        number += 1
    for task in program:
        for allocation in task.allocates:
            if allocation.tier == tier:
                if number > entry:
                    break
                held[allocation.key] = allocation, task
                number += 1
        if number > entry:
            break
        for key in task.releases:
            if key in held:
                del held[key]
                number += 1
    yield from held.values()

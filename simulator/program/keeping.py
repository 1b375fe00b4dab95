"""Keeping: which tensors the steps of a layer keep for its backward pass while they run, forward or again.

Between steps one result is alive: a step's result is freed when the next one has read it, unless autograd saves it: a
step that saves a tensor as large as the result before it is taken to save that, which then is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from simulator.engine.task import Quantity
from simulator.program.step import Kept, Step


class Keeping:
    """What *steps* keep, as *kept* reads it off each. *hands*: which of them may hand their result on, if not all."""

    def __init__(
        self, steps: Sequence[Step], kept: Callable[[Step], Kept], hands: Callable[[int], bool] | None = None
    ) -> None:
        self._kept = [kept(step) for step in steps]
        self._sizes = [step.output_size for step in steps]
        self._handed_over = [
            (hands is None or hands(number)) and bool(size) and size in after.sizes
            for number, (size, after) in enumerate(zip(self._sizes, self._kept[1:], strict=False))
        ] + [False]

    def hands_over(self, number: int) -> bool:
        """Whether the next step saves the result of this one."""
        return self._handed_over[number]

    def own(self, number: int) -> tuple[Quantity, ...]:
        """Bytes of what a step saves beside the result that the one before handed over."""
        kept = self._kept[number]
        if number == 0 or not self._handed_over[number - 1]:
            return kept.tensors
        handed = kept.sizes.index(self._sizes[number - 1])
        return (*kept.tensors[:handed], *kept.tensors[handed + 1 :])


def idle(steps: Sequence[Step], results: Iterable[int], chain: frozenset[int]) -> frozenset[int]:
    """Of a *chain* of steps that run again, those whose results nobody needs, since the *results* behind them are
    there: back to the first whose reader keeps something for the backward pass.
    """
    found = set()
    for number in results:
        while number in chain and number - 1 in chain and not steps[number].restored.sizes + steps[number].saved.sizes:
            number -= 1
            found.add(number)
    return frozenset(found)

"""The code of the vision tower: its segments, priced for each rank's images, and written down forward and backward.

A segment has a backward pass where it, or one before it, is trained. Blocks of a trained tower keep their input only
where layers are recomputed: torchtitan wraps both in the same checkpoints (`models/qwen3_vl/parallelize.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from simulator.engine.task import Allocation, Quantity
from simulator.model.operator import Operator
from simulator.model.operators.vision import Segment
from simulator.model.recompute import WHOLE, Stretch
from simulator.program.costs import Priced
from simulator.program.emitter import Emitter, allocation
from simulator.program.job import Job
from simulator.program.layer_code import Gradients, LayerCode, Rerun
from simulator.program.step import NOTHING_KEPT, Kept, Parted, Step
from simulator.program.trained import Trained

Price = Callable[[Operator, bool], Step]
"""Prices an operator whose weights are trained or not."""
Which = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Piece:
    """The code of one segment, for any micro-batch."""

    code: LayerCode
    backward: bool
    input_bytes: Quantity
    """What its checkpoint keeps; 0 where its operators keep what they need."""


class ImageCode:
    """Writes the passes of the tower and its projector, and the placing of their result among the embeddings."""

    def __init__(self, emitter: Emitter, pieces: Sequence[Piece], place: LayerCode) -> None:
        self._emitter = emitter
        self._pieces = pieces
        self.place = place

    @property
    def trained(self) -> bool:
        """Whether anything here has a backward pass."""
        return any(piece.backward for piece in self._pieces)

    def forward(self, tag: str) -> None:
        """Write the forward pass."""
        for number, piece in enumerate(self._pieces):
            piece.code.forward(f"{tag} {number}", first=[self._input(tag, number)])

    def backward(self, tag: str, gradients: Gradients) -> None:
        """Write the backward pass of what has one."""
        for number, piece in reversed(list(enumerate(self._pieces))):
            if not piece.backward:
                continue
            piece.code.backward(f"{tag} {number}", gradients)
            kept = self._input(tag, number).key
            self._emitter.release(*((kept,) if self._emitter.holds(kept) else ()))

    def _input(self, tag: str, number: int) -> Allocation:
        return allocation(f"{tag} {number}.input", "saved activations", self._pieces[number].input_bytes)


def image_code(
    job: Job, emitter: Emitter, loads: Sequence[Sequence[Segment]], place: Sequence[Operator], price: Price
) -> ImageCode:
    """The code of a stage with images, whose *loads* are the segments for each number of images that ranks have.

    *place*: operators that put the image tokens into their places, likewise. Fewest images come first.
    """
    which = different_loads(job)[1]
    pieces = []
    for alike in zip(*(map(partial(differentiated, job.trained), segments) for segments in loads), strict=True):
        backward = any(operator.backward or operator.backward_weight for operator in alike[0].operators)
        steps = _steps(alike, which, price, trained=job.trained.whole(alike[0].role))
        again = job.recompute == WHOLE and backward and alike[0].block
        code = _code(emitter, steps, again=again, backward=backward, stops_early=job.stack.stops_early)
        pieces.append(Piece(code, backward, steps[-1].output_bytes if again else 0.0))
    placing = _code(emitter, [unlike([price(one, False) for one in place], which)])
    return ImageCode(emitter, pieces, placing)


def _code(
    emitter: Emitter, steps: list[Step], *, again: bool = False, backward: bool = False, stops_early: bool = False
) -> LayerCode:
    """The code of *steps*, which keep what a *backward* pass needs, if there is one, or only from running *again*."""
    if again:
        stretch = Stretch(tuple(range(len(steps))), len(steps) - 1, stops_early=stops_early)
        return LayerCode(
            emitter, [replace(step, saved=NOTHING_KEPT, restored=step.saved) for step in steps], [Rerun(stretch)]
        )
    return LayerCode(emitter, steps if backward else [replace(step, saved=NOTHING_KEPT) for step in steps])


def differentiated(trained: Trained, segment: Segment) -> Segment:
    """*segment* without the gradients that nobody needs: of what is frozen and has nothing trained before it."""
    if trained.whole("vision"):
        return segment
    head, *rest = segment.operators
    if trained.whole(segment.role):
        return replace(segment, operators=(replace(head, backward=()), *rest))
    return replace(segment, operators=tuple(replace(op, backward=(), backward_weight=()) for op in segment.operators))


def different_loads(job: Job) -> tuple[npt.NDArray[np.int64], Which]:
    """The numbers of images that ranks have, ascending, and which of them each behaviour has."""
    assert job.images is not None
    return np.unique(job.images.of_behaviours(job.mesh, job.folding), return_inverse=True)


def unlike(steps: Sequence[Step], which: Which) -> Step:
    """One operator of behaviours that do unlike much: each does as the one of *steps* that *which* says.

    The last of them, the fullest, tells what is the same for all.
    """
    if len(steps) == 1:
        return steps[0]
    return replace(
        steps[-1],
        forward=_priced([step.forward for step in steps], which),
        backward=_priced([step.backward for step in steps], which),
        output_bytes=_each([step.output_bytes for step in steps], which),
        workspace_bytes=_each([step.workspace_bytes for step in steps], which),
        backward_workspace_bytes=_each([step.backward_workspace_bytes for step in steps], which),
        saved=_kept([step.saved for step in steps], which),
        restored=_kept([step.restored for step in steps], which),
        parted=_parted([step.parted for step in steps if step.parted is not None], which),
    )


def _parted(parted: Sequence[Parted], which: Which) -> Parted | None:
    if not parted:
        return None
    return Parted(_priced([one.inputs for one in parted], which), _priced([one.weights for one in parted], which))


def _kept(kept: Sequence[Kept], which: Which) -> Kept:
    sizes = zip(*(one.tensors for one in kept), strict=True)
    return replace(kept[-1], tensors=tuple(_each(each, which) for each in sizes))


def _steps(alike: Sequence[Segment], which: Which, price: Price, *, trained: bool) -> list[Step]:
    """The operators of one segment, for all loads at once."""
    operators = zip(*(segment.operators for segment in alike), strict=True)
    steps = [unlike([price(operator, trained) for operator in loads], which) for loads in operators]
    return [replace(step, name=f"vision {step.name}") for step in steps]


def _priced(priced: Sequence[Priced], which: Which) -> Priced:
    durations = np.array([one.duration_ns for one in priced], np.int64)
    return replace(priced[-1], duration_ns=durations[which])


def _each(sizes: Iterable[Quantity], which: Which) -> Quantity:
    return np.array(list(sizes), np.float64)[which]

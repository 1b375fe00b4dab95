"""Pipeline: how the layers of a model lie on the stages, and which stage hands over to which.

A stage has one or several *chunks*, runs of layers that a pass goes through at once; all chunks of all stages in the
order of the model are the *virtual* stages. Chunks go round the stages (interleaved; Narayanan et al., 2021), or there
are two whole models in opposite directions, so that a stage has its own layers and those of its mirror image
(*mirrored*; DeepSeek-V3, section 3.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Pipeline:
    """*stages* of *chunks* each."""

    stages: int = 1
    chunks: int = 1
    mirrored: bool = False
    layers: tuple[int, ...] = ()
    """Layers of each virtual stage; empty: as even as can be, the first ones one more where it does not divide."""

    @property
    def virtual_stages(self) -> int:
        """Parts that the model is cut into."""
        return self.stages if self.mirrored else self.stages * self.chunks

    @property
    def copies(self) -> int:
        """Stages that hold each layer."""
        return 2 if self.mirrored else 1

    def mirror(self, stage: int) -> int:
        """The stage that holds the same layers, where they are mirrored."""
        return self.stages - 1 - stage

    @property
    def round(self) -> int:
        """Micro-batches after which a filled pipeline does the same again."""
        if self.mirrored:
            return 2
        return self.stages if self.chunks > 1 else 1

    def virtual(self, stage: int, chunk: int) -> int:
        """The virtual stage that is *chunk* of *stage*."""
        if self.mirrored:
            return self.mirror(stage) if chunk else stage
        return chunk * self.stages + stage

    def is_first(self, stage: int, chunk: int) -> bool:
        """Whether the model begins there."""
        return self.virtual(stage, chunk) == 0

    def is_last(self, stage: int, chunk: int) -> bool:
        """Whether the model ends there."""
        return self.virtual(stage, chunk) == self.virtual_stages - 1

    def begins(self, stage: int) -> bool:
        """Whether the model begins in any chunk of *stage*."""
        return any(self.is_first(stage, chunk) for chunk in range(self.chunks))

    def ends(self, stage: int) -> bool:
        """Whether the model ends in any chunk of *stage*."""
        return any(self.is_last(stage, chunk) for chunk in range(self.chunks))

    def before(self, stage: int, chunk: int) -> int | None:
        """The stage that hands activations to a chunk; None where the model begins."""
        if self.is_first(stage, chunk):
            return None
        return stage + 1 if self.mirrored and chunk else (stage - 1) % self.stages

    def behind(self, stage: int, chunk: int) -> int | None:
        """The stage that gets activations from a chunk; None where the model ends."""
        if self.is_last(stage, chunk):
            return None
        return stage - 1 if self.mirrored and chunk else (stage + 1) % self.stages

    def edges(self, layers: int) -> tuple[int, ...]:
        """First of the model's *layers* of each virtual stage, and one past the last."""
        each, more = divmod(layers, self.virtual_stages)
        counts = self.layers or tuple(each + (number < more) for number in range(self.virtual_stages))
        return tuple(accumulate(counts, initial=0))

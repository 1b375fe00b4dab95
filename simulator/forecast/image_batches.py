"""What a scenario says of images: how many each data-parallel rank encodes in a micro-batch, for any split of a batch.

Every micro-batch has the same numbers, so that one draw stands for all. Where ranks meet in every micro-batch, as
sharded weights and experts make them, a step waits for the fullest rank of each; that ranks which never meet even out
over many micro-batches is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.forecast.scenario import Images, Scenario
from simulator.model.architecture import Architecture, VisionTower
from simulator.program.image_load import Counts, ImageLoad, dealt, evened


class ImageBatches:
    """The images of *scenario*, which has some and passed :func:`image_problems`."""

    def __init__(self, scenario: Scenario, architecture: Architecture) -> None:
        assert scenario.training.images is not None
        assert architecture.vision is not None
        self._asked, self._tower = scenario.training.images, architecture.vision
        self._length = scenario.training.sequence_length

    def load(self, ranks: int, sequences: int) -> ImageLoad:
        """Images of *ranks* data-parallel ranks that take so many *sequences* each."""
        counts = dealt(self._of_sequences(ranks * sequences), ranks)
        return ImageLoad(_patches(self._asked, self._tower), evened(counts) if self._asked.even else counts)

    def patches_in(self, lengths: Counts) -> Counts:
        """Patches of the images in each of the sequences that are *lengths* tokens long, no more than find room."""
        room = lengths // _tokens(self._asked, self._tower)
        return np.minimum(self._of_sequences(lengths.size), room) * _patches(self._asked, self._tower)

    def dealt(self, patches: Counts) -> ImageLoad:
        """Images of data-parallel ranks that encode so many *patches*."""
        one = _patches(self._asked, self._tower)
        return ImageLoad(one, patches // one)

    def _of_sequences(self, number: int) -> Counts:
        asked = self._asked
        if asked.per_sequence is not None:
            return np.resize(np.array(asked.per_sequence, np.int64), number)
        assert asked.synthetic is not None
        law, generator = asked.synthetic, np.random.default_rng(asked.synthetic.seed)
        drawn = generator.lognormal(np.log(law.mean) - law.sigma**2 / 2, law.sigma, number)
        room = self._length // _tokens(asked, self._tower)
        return np.minimum(np.rint(drawn), room).astype(np.int64)


def image_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    """What of the images does not go together with the model."""
    asked, tower = scenario.training.images, architecture.vision
    if asked is None:
        return
    if tower is None:
        yield f"training.images: {architecture.model_type} has no vision tower; leave it out"
        return
    step = tower.patch * tower.merge
    for side in ("height", "width"):
        pixels = getattr(asked, side)
        if pixels % step:
            near = " or ".join(str(n * step) for n in (pixels // step, pixels // step + 1) if n)
            times = f"patch({tower.patch}) * merge({tower.merge}) = {step}"
            yield f"training.images.{side}: found {pixels}, which is no multiple of {times}; nearest: {near}"
    tokens, length = _tokens(asked, tower), scenario.training.sequence_length
    most = max(asked.per_sequence or (1,))
    if most * tokens > length:
        yield (
            f"training.sequence_length: found {length}, but {most} images of {tokens} tokens take {most * tokens}; "
            f"there is room for {length // max(tokens, 1)}"
        )


def _patches(asked: Images, tower: VisionTower) -> int:
    return (asked.height // tower.patch) * (asked.width // tower.patch)


def _tokens(asked: Images, tower: VisionTower) -> int:
    """Tokens of one image in a sequence."""
    return _patches(asked, tower) // tower.merge**2

"""Weights by layer for other splits: how many elements a rank computes with, and how many of them it trains.

Padding of shards is left out, so that shares of these are never above what a rank keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.model.architecture import Architecture
from simulator.model.parameter import Parameter
from simulator.model.parameters import embedding_parameters, head_parameters, vision_parameters
from simulator.model.split import share_model
from simulator.planner.places import places
from simulator.program.job import Job

Elements = npt.NDArray[np.float64]
"""[layers + modules + 3]: the vision tower, the embedding, each layer and prediction module, the head."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Elements by layer on one rank, as it computes with them."""

    frozen: Elements
    trained: Elements

    @property
    def elements(self) -> Elements:
        """All of them."""
        return self.frozen + self.trained


class LayerWeights:
    """Counts the weights of *job*'s model for other splits."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shared = cache(lambda tp, etp: share_model(job.architecture, tp, etp))
        self.dense = cache(self._dense)
        self.experts = cache(self._experts)

    def _dense(self, tp: int) -> Weights:
        """Of everything but routed experts."""
        own = self._shared(tp, 1)
        return self._counted(
            [
                list(vision_parameters(self._job.architecture)),
                list(embedding_parameters(own)),
                *([p for p in weights if p.role != "routed_expert"] for weights in self._weights(own, tp)),
                list(head_parameters(own)),
            ]
        )

    def _experts(self, etp: int) -> Weights:
        """Of one routed expert of each layer: a rank has as many of them as it has slots."""
        own = self._shared(1, etp)
        routed = [[p for p in weights if p.role == "routed_expert"] for weights in self._weights(own, 1)]
        one = np.array([0, 0, *(1 / parameters[0].shape[0] if parameters else 0 for parameters in routed), 0])
        together = self._counted([[], [], *routed, []])
        return Weights(together.frozen * one, together.trained * one)

    def _weights(self, own: Architecture, tp: int) -> list[tuple[Parameter, ...]]:
        return [place.parameters(own, tp) for place in places(self._job.architecture)]

    def _counted(self, places: Iterable[list[Parameter]]) -> Weights:
        counts = []
        for parameters in places:
            frozen, trained = self._job.trained.split(parameters)
            counts.append((sum(p.elements for p in frozen), sum(p.elements for p in trained)))
        columns = np.array(counts, float).T
        return Weights(columns[0], columns[1])

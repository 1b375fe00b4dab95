"""A recording, gone through once and summed up: counts by step, source rank, layer and expert, and a sample of tokens.

Memory is bounded whatever the recording: neighbouring steps are joined into wider and wider windows, after them
neighbouring ranks, and of the tokens of each layer a uniform sample is kept. What needs every token goes through the
recording again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from simulator.routing.recording import Batch, Hear, Recording, unheard
from simulator.routing.table import FloatArray, IntArray, RoutingTable

MAX_ENTRIES = 16_000_000
"""Counts that are held."""
SAMPLE_TOKENS = 4096
"""Tokens of each layer that are kept."""

_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What a recording says, layers without any assignment (dense ones) left out."""

    name: str
    counts: FloatArray
    """Assignments by window of steps, source rank, layer and expert."""
    first_steps: tuple[int, ...]
    """Number of the first step of each window; a window is *window_steps* wide."""
    window_steps: int
    sources: tuple[int, ...]
    """Numbers of the ranks that tokens came from, of the first where several were joined."""
    layers: tuple[int, ...]
    """Number of each row's layer in the recording."""
    picks: IntArray | None
    """A uniform sample of tokens' experts, [layers, tokens, top_k]; None where only counts were recorded."""
    source: str = ""
    """Where it comes from."""
    numbered: bool = True
    """Whether layers are numbered as in the model; else they only count those that were recorded."""

    @property
    def table(self) -> RoutingTable:
        """Everything summed over steps and source ranks."""
        return replace(self._table(self.counts.sum(axis=(0, 1)), self.name), picks=self.picks)

    @property
    def by_window(self) -> list[RoutingTable]:
        """A table for each window of steps."""
        return [
            self._table(counts, f"{self.name}, from step {step}")
            for step, counts in zip(self.first_steps, self.counts.sum(axis=1), strict=True)
        ]

    @property
    def source_share(self) -> FloatArray:
        """Share of all assignments that each source rank's tokens made, [sources]."""
        made = self.counts.sum(axis=(0, 2, 3))
        return np.asarray(made / made.sum())

    def _table(self, counts: FloatArray, name: str) -> RoutingTable:
        return RoutingTable(counts, name, self.source, self.layers if self.numbered else ())


def gather(recording: Recording, hear: Hear = unheard) -> Trace | None:
    """Go through *recording* once; None when nothing was ever chosen. *hear* is told how far it is."""
    counts, sample = _Counts(recording.experts), _Sample()
    for batch in recording.batches(hear):
        counts.add(batch)
        if batch.picks is not None:
            sample.add(batch.layer, batch.picks[(batch.picks >= 0).any(axis=1)])
    if not counts.cells:
        return None
    steps, sources, layers, dense = counts.dense()
    return Trace(
        name=recording.name,
        counts=dense,
        first_steps=tuple(step * counts.steps for step in steps),
        window_steps=counts.steps,
        sources=tuple(source * counts.ranks for source in sources),
        layers=tuple(layers),
        picks=sample.stacked(layers),
        source=recording.source,
        numbered=recording.numbered,
    )


class _Counts:
    """Counts by window, source and layer; windows widen when there are too many, and then groups of ranks."""

    def __init__(self, experts: int) -> None:
        self.steps = self.ranks = 1
        self.cells: dict[_Key, FloatArray] = {}
        self._experts = experts

    def add(self, batch: Batch) -> None:
        chosen = batch.counts
        if chosen is None:
            assert batch.picks is not None
            chosen = np.bincount(batch.picks[batch.picks >= 0])
        self._experts = max(self._experts, chosen.size)
        if chosen.any():
            key = batch.step // self.steps, batch.source // self.ranks, batch.layer
            self._enter(key, np.asarray(chosen, dtype=np.float64))
            while len(self.cells) * self._experts > MAX_ENTRIES and self._join():
                pass

    def dense(self) -> tuple[list[int], list[int], list[int], FloatArray]:
        """Windows, sources, layers, and the counts [windows, sources, layers, experts]."""
        while prod(map(len, self._axes())) * self._experts > MAX_ENTRIES and self._join():
            pass
        axes = self._axes()
        counts = np.zeros((*map(len, axes), self._experts))
        at = [{number: index for index, number in enumerate(axis)} for axis in axes]
        for (step, source, layer), chosen in self.cells.items():
            counts[at[0][step], at[1][source], at[2][layer], : chosen.size] = chosen
        return axes[0], axes[1], axes[2], counts

    def _axes(self) -> list[list[int]]:
        return [sorted({key[axis] for key in self.cells}) for axis in range(3)]

    def _join(self) -> bool:
        """Join pairs of windows, or of sources where there is one window; False where there is one of each."""
        windows, sources, _ = map(len, self._axes())
        if windows == 1 and sources == 1:
            return False
        steps, ranks = (2, 1) if windows > 1 else (1, 2)
        self.steps, self.ranks = self.steps * steps, self.ranks * ranks
        cells, self.cells = self.cells, {}
        for (step, source, layer), chosen in cells.items():
            self._enter((step // steps, source // ranks, layer), chosen)
        return True

    def _enter(self, key: _Key, chosen: FloatArray) -> None:
        known = self.cells.get(key)
        if known is None:
            self.cells[key] = chosen.copy()
        elif known.size >= chosen.size:
            known[: chosen.size] += chosen
        else:
            grown = chosen.copy()
            grown[: known.size] += known
            self.cells[key] = grown


class _Sample:
    """Of each layer the tokens with the lowest random keys: a uniform sample, whatever the order and the batches."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._kept: dict[int, tuple[FloatArray, IntArray]] = {}

    def add(self, layer: int, picks: IntArray) -> None:
        keys = self._rng.random(len(picks))
        known = self._kept.get(layer)
        if known is not None:
            if known[1].shape[1] != picks.shape[1]:
                picks = _widened(picks, known[1].shape[1])
            full = len(known[0]) == SAMPLE_TOKENS
            near = keys < known[0].max() if full else np.ones(keys.size, dtype=bool)
            keys, picks = np.concatenate([known[0], keys[near]]), np.concatenate([known[1], picks[near]])
        if keys.size > SAMPLE_TOKENS:
            lowest = np.argpartition(keys, SAMPLE_TOKENS - 1)[:SAMPLE_TOKENS]
            keys, picks = keys[lowest], picks[lowest]
        self._kept[layer] = keys, np.asarray(picks, dtype=np.int64)

    def stacked(self, layers: list[int]) -> IntArray | None:
        """[layers, tokens, top_k], as many tokens as the layer with the fewest has."""
        if not all(layer in self._kept for layer in layers):
            return None
        tokens = min(len(self._kept[layer][0]) for layer in layers)
        top_k = max(self._kept[layer][1].shape[1] for layer in layers)
        return np.stack([_widened(self._kept[layer][1][:tokens], top_k) for layer in layers])


def _widened(picks: IntArray, top_k: int) -> IntArray:
    """*picks* with *top_k* columns, -1 in those that are new."""
    missing = max(0, top_k - picks.shape[1])
    return np.pad(picks, ((0, 0), (0, missing)), constant_values=-1)[:, :top_k]

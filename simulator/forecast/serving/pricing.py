"""Prices of iterations, from few exact ones.

Decoding sequences are padded to the next size that was captured, as engines do with CUDA graphs (vLLM's
`cudagraph_capture_sizes`), and count as equally long. Prompts count as equal chunks with as many tokens and as many
query-key pairs in all. Numbers of tokens and mean contexts lie on a geometric grid, between whose points prices are
interpolated linearly; chunks' contexts and, beside prompts, decoding sequences are rounded to it. A price is linear in
contexts where layers attend to all of them, and so exact; where a window or a choice of keys bounds what is read it is
off near the bound, and where matmuls' tiles fill it is off between two numbers of tokens. Tests bound the error.

Ranks in step: what each does by itself lasts as long as on the slowest; experts and their exchange take what they do
when each rank brings the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import floor, log2

import numpy as np
import numpy.typing as npt

from simulator.forecast.serving.lower_tiers import waited_s
from simulator.program.serving.iteration import Chunk, Iteration, Parts, Price

GRADES = ("measured", "scaled", "datasheet", "assumed")
PARTS = tuple(field.name for field in fields(Parts))
FIGURES = (*PARTS, "interval_s", *GRADES)
"""What is kept of a price, in seconds."""
SHARED = np.array([name in ("experts_s", "exchange_s") for name in FIGURES])
"""Those that ranks in step do together."""
_INTERVAL = len(PARTS)
_HOST = PARTS.index("host_s")
_LAUNCH = PARTS.index("launch_bound_s")
EXACT = 16
"""Numbers up to it are on the grid."""
POINTS = 4
"""Of the grid in each doubling."""

Figures = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank computes in an iteration."""

    chunks: tuple[tuple[int, int], ...] = ()
    """Of prompts: new tokens, and cached ones that they attend to."""
    decoding: int = 0
    contexts: float = 0.0
    """Tokens that all decoding sequences attend to."""
    loaded_s: float = 0.0
    """Seconds in which caches come up from lower tiers."""


class IterationPrices:
    """Prices by *price*, the exact one, of ranks whose engine has so many pipeline *stages*."""

    def __init__(
        self,
        price: Callable[[Iteration], Price],
        stages: int = 1,
        layers: int = 1,
        loads: str = "measured",
        *,
        graphs: bool = True,
    ) -> None:
        """Caches that come up do so for one of *layers* after the other; *loads* is what is known of their way.

        *graphs*: decoding is replayed with sizes that were captured.
        """
        self._padded, self.replayed = (captured if graphs else int), graphs
        self._price, self._stages, self._layers, self._loads = price, stages, layers, FIGURES.index(loads)
        self._known: dict[Iteration, Figures] = {}

    @property
    def priced(self) -> int:
        """Iterations that were priced exactly."""
        return len(self._known)

    def duration_ns(self, figures: Figures) -> int:
        """Until the next iteration of the same sequences: every stage takes as many batches in turn as there are."""
        latency, interval = float(figures[:_INTERVAL].sum()), float(figures[_INTERVAL])
        return round(1e9 * (latency if self._stages == 1 else max(latency, self._stages * interval)))

    def together(self, loads: Sequence[Load]) -> Figures:
        """Figures of an iteration of ranks in step with *loads*, all of which wait for the caches that come up."""
        found = self._computed([replace(load, loaded_s=0.0) for load in loads])
        loaded_s = max(load.loaded_s for load in loads)
        if not loaded_s:
            return found
        found = found.copy()
        waits = waited_s(loaded_s, float(found[:_INTERVAL].sum()), self._layers)
        for figure in (_HOST, _INTERVAL, self._loads):
            found[figure] += waits
        return found

    def led(self, figures: Figures, lead_s: float) -> Figures:
        """*figures* of an iteration whose host began to launch it *lead_s* before the device was free for it.

        What a device waits for launches in all is the longest that it is ahead of them, which is so much less: exact
        where the host itself waits for nothing in between. Stages of a pipeline share what it is alike.
        """
        hidden = min(lead_s, float(figures[_LAUNCH]))
        if not hidden:
            return figures
        found = figures.copy()
        found[_LAUNCH] -= hidden
        found[_INTERVAL] -= hidden / self._stages
        return found

    def _computed(self, loads: Sequence[Load]) -> Figures:
        alike = set(loads)
        if len(alike) == 1:
            return self.of(loads[0])
        each = [self.of(load) for load in alike if load.chunks or load.decoding]
        slowest = max(each, key=lambda figures: float(figures[:_INTERVAL][~SHARED[:_INTERVAL]].sum()))
        found = np.where(SHARED, self._shared(loads), slowest)
        found[_INTERVAL] *= found[:_INTERVAL].sum() / slowest[:_INTERVAL].sum()
        return found

    def _shared(self, loads: Sequence[Load]) -> Figures:
        """What ranks with *loads* do together takes, by what all of them bring; contexts do not matter to experts."""
        prompts = any(load.chunks for load in loads)
        count = self._padded if not prompts else int
        brought = sum(new for load in loads for new, _ in load.chunks) + sum(count(load.decoding) for load in loads)

        def of_all(tokens: int) -> Figures:
            mean = tokens / len(loads)
            each = max(1, round(mean))
            chunks, decode = ((Chunk(each),), ()) if prompts else ((), (1,) * each)
            return self._exact(Iteration(chunks, decode, mean))

        return _between(brought, of_all)

    def of(self, load: Load) -> Figures:
        """Figures of an iteration of one rank, others alike."""
        if not load.chunks:
            return self._decoding(self._padded(load.decoding), load.contexts)
        count = len(load.chunks)
        tokens = sum(new for new, _ in load.chunks)
        pairs = sum(Chunk(new, cached).pairs for new, cached in load.chunks)
        each = tokens / count
        cached = max(0.0, (pairs - tokens * (each + 1) / 2) / tokens)
        context = load.contexts / load.decoding if load.decoding else 0.0
        decode = (near(context),) * near(load.decoding)
        return _between(tokens, lambda total: self._chunks(count, total, near(cached), decode))

    def _chunks(self, count: int, tokens: int, cached: int, decode: tuple[int, ...]) -> Figures:
        """*tokens* tokens in *count* nearly equal chunks."""
        whole, more = divmod(max(tokens, count), count)
        chunks = tuple(Chunk(whole + (number < more), cached) for number in range(count))
        return self._exact(Iteration(chunks, decode))

    def _decoding(self, sequences: int, contexts: float) -> Figures:
        def of_length(length: int) -> Figures:
            return self._exact(Iteration((), (length,) * sequences))

        return _between(max(1.0, contexts / sequences), of_length)

    def _exact(self, iteration: Iteration) -> Figures:
        known = self._known.get(iteration)
        if known is None:
            price = self._price(iteration)
            parts = [getattr(price.parts, name) for name in PARTS]
            grades = [price.grades.get(grade, 0.0) for grade in GRADES]
            known = self._known[iteration] = np.array([*parts, price.interval_s, *grades])
        return known


def _between(value: float, at: Callable[[int], Figures]) -> Figures:
    """The figures at *value*, from those *at* the two points of the grid around it."""
    low, high = around(value)
    if low == high:
        return at(low)
    share = (value - low) / (high - low)
    return (1 - share) * at(low) + share * at(high)


def captured(sequences: int) -> int:
    """The size of the graph that so many sequences are replayed with: 1, 2, 4, every eighth, from 256 every 16th."""
    if sequences <= 4:
        return 1 if sequences == 1 else 2 * -(-sequences // 2)
    step = 8 if sequences <= 256 else 16
    return step * -(-sequences // step)


def around(value: float) -> tuple[int, int]:
    """The points of the grid that *value* lies between: equal ones if it is one."""
    if value <= EXACT:
        return max(1, floor(value)), max(1, -floor(-value))
    step = floor(log2(value) * POINTS + 1e-9)
    low, high = round(2 ** (step / POINTS)), round(2 ** ((step + 1) / POINTS))
    return (low, low) if value == low else (low, high)


def near(value: float) -> int:
    """The nearest point of the grid; 0 is one."""
    if value < 0.5:
        return 0
    low, high = around(value)
    return low if value - low <= high - value else high

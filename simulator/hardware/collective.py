"""What a library's collectives attain over the scale-up links: curves of timings, or a physical form of a few figures.

Both split a collective's time into a latency, that of a message without bytes, and the rest, for which it keeps its
links busy. Sizes are those of the whole buffer: what a gather ends with, a reduction begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from pydantic import Field, field_validator

from simulator.hardware.figure import Figure, Floats, Grade, Record, Share, rising
from simulator.units import BytesPerSecond, Seconds

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Operation = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
AnyOperation = Operation | Literal["one_to_all"]
"""With the broadcast, which takes what gathers attain; "broadcast" is a kind of kernel already."""
Positive = Annotated[float, Field(gt=0)]

BULK_HALF_BYTES_PER_RANK = 2**19
"""Among 8 ranks NCCL on A100, H100, H200 and B200 waits as a small message does up to 1 MiB, and its full further wait
from 16 MiB on (ai-dynamo/aiconfigurator@095f58a5, comm/nccl tables); between 2 H200 it does so at a quarter of these
sizes (own measurement, hardware_profiles/measured/h200-sxm/points/collectives.parquet)."""


def passes(operation: AnyOperation) -> float:
    """How often (n - 1) / n of the buffer leaves each of n ranks: bus bandwidth counts this much."""
    return 2.0 if operation == "all_reduce" else 1.0


class Formula(Record):
    """The physical form, for links without a curve.

    A small message over n ranks takes `start + (n - 1) * step`. A large one moves its bytes at a share of the link
    rate, after a further wait of `bulk` for a change of protocol; half of that wait is met at
    `BULK_HALF_BYTES_PER_RANK` for each rank.
    """

    share: Figure[Share]
    """Bus bandwidth (bytes on each rank's wire per second) over the scale-up bandwidth, in a full domain."""
    few_ranks: dict[Count, Figure[Share]] = Field(default_factory=dict)
    """The same for smaller groups, by ranks: those keep fewer channels busy."""
    start: Figure[Seconds]
    step: Figure[Seconds]
    bulk: Figure[Seconds] | None = None

    @property
    def grade(self) -> Grade:
        """How far to trust the rate."""
        return self.share.grade

    def in_switch(self, ranks: ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether the switch reduces for groups of *ranks*: a formula does not say, and links are taken to."""
        return np.zeros(np.shape(ranks), bool)

    def without_switch(self) -> Formula:
        """As a part of a larger collective, which links and not switches reduce."""
        return self

    @property
    def best_share(self) -> float:
        """The most that a group of any size attains."""
        return max(self.share.value, *(figure.value for figure in self.few_ranks.values()), 0.0)

    def share_at(self, ranks: ArrayLike, domain: int, message_bytes: ArrayLike) -> Floats:
        """The share for groups of *ranks* in a node of *domain* accelerators, interpolated on log ranks.

        It is the same for all sizes; *message_bytes* gives the shape.
        """
        known = {count: figure.value for count, figure in self.few_ranks.items()} | {domain: self.share.value}
        counts = sorted(known)
        asked = np.log(np.maximum(np.asarray(ranks, float), 1.0))
        share = np.interp(asked, np.log(counts), [known[count] for count in counts])
        return np.asarray(share + 0.0 * np.asarray(message_bytes, float))

    def latency_s(self, ranks: ArrayLike, message_bytes: ArrayLike) -> Floats:
        """All of the time that does not grow with bytes over rate; 0 for a lone rank or an empty message."""
        ranks_, size = np.asarray(ranks, float), np.asarray(message_bytes, float)
        half_bytes = ranks_ * BULK_HALF_BYTES_PER_RANK
        bulk_s = self.bulk.value * size / (size + half_bytes) if self.bulk else 0.0
        wait_s = self.start.value + (ranks_ - 1) * self.step.value + bulk_s
        return np.where((ranks_ > 1) & (size > 0), wait_s, 0.0)


class Run(Record):
    """Timings of one collective among one number of ranks."""

    ranks: Annotated[int, Field(ge=2)]
    algorithm: Literal["ring", "nvls", "pairwise"]
    """What the library chose for large messages; nvls: the switch reduces."""
    source: Annotated[str, Field(min_length=1)]
    grade: Grade = "measured"
    points: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=2)]
    """(bytes of the whole buffer, seconds)."""

    _by_size = field_validator("points")(rising)

    def seconds(self, message_bytes: ArrayLike) -> Floats:
        """Linear between neighbouring points, which is a latency and a rate of their own for each stretch of sizes.

        Shorter messages take as long as the shortest; longer ones go on at the rate of the last stretch.
        """
        sizes, seconds = self._columns
        size = np.asarray(message_bytes, float)
        beyond_s = np.maximum(size - sizes[-1], 0.0) * self._last_slope
        return np.asarray(np.interp(size, sizes, seconds) + beyond_s)

    @cached_property
    def bytes_per_s(self) -> float:
        """The best rate of buffer bytes met in any message."""
        sizes, seconds = self._columns
        return float(max((sizes / seconds).max(), 1.0 / self._last_slope))

    @cached_property
    def _columns(self) -> tuple[Floats, Floats]:
        """Sizes and seconds of the points."""
        sizes, seconds = np.array(self.points).T
        return sizes, seconds

    @cached_property
    def _last_slope(self) -> float:
        """Seconds a byte beyond the last point; where noise makes that stretch free, those of the point itself."""
        (size, seconds), (last, last_seconds) = self.points[-2:]
        slope = (last_seconds - seconds) / (last - size)
        return slope if slope > 0 else last_seconds / last


class Timed(Record):
    """A collective's runs, as they price a node whose links may have another rate.

    Over other links a message keeps what it takes beyond its bytes at the best rate of its group, and the best rate is
    in proportion: closer between generations of NVLink than scaling all of the time but its latency.
    """

    operation: Operation
    bandwidth: BytesPerSecond
    """Of the links that it was measured over, one direction."""
    links: BytesPerSecond
    """Of the links that it prices."""
    scaled: bool
    """It stands in for another part, or for links of another rate."""
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    """By ascending ranks."""

    @property
    def grade(self) -> Grade:
        """How far to trust it."""
        return "scaled" if self.scaled else self.runs[-1].grade

    def in_switch(self, ranks: ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether the switch reduces for groups of *ranks*: as in the run of so many, or of the next more."""
        reduces = np.array([run.algorithm == "nvls" for run in self.runs])
        place = np.searchsorted([run.ranks for run in self.runs], np.asarray(ranks))
        return np.asarray(reduces[np.minimum(place, len(self.runs) - 1)])

    def without_switch(self) -> Timed:
        """The runs that links and not switches reduced; all, where there are no others."""
        runs = tuple(run for run in self.runs if run.algorithm != "nvls")
        return self.model_copy(update={"runs": runs or self.runs})

    @property
    def best_share(self) -> float:
        """The most that a group of any size attains."""
        return max(self._on_wire(run) * run.bytes_per_s / self.bandwidth for run in self.runs)

    def share_at(self, ranks: ArrayLike, domain: int, message_bytes: ArrayLike) -> Floats:
        """Bus bandwidth over link rate beyond the latency, interpolated on log ranks; *domain* bounds the groups."""
        ranks_, size = self._asked(np.minimum(ranks, domain), message_bytes)
        shares = [self._on_wire(run) * size / (self.links * self._busy_s(run, size)) for run in self.runs]
        return _between(np.log(ranks_), np.log([run.ranks for run in self.runs]), shares)

    def latency_s(self, ranks: ArrayLike, message_bytes: ArrayLike) -> Floats:
        """Of the shortest message; between measured numbers of ranks interpolated on ranks. 0 for a lone rank."""
        ranks_, size = self._asked(ranks, message_bytes)
        latencies = [self._seconds(run, size) - self._busy_s(run, size) for run in self.runs]
        wait_s = _between(ranks_, [run.ranks for run in self.runs], latencies)
        return np.where((np.asarray(ranks) > 1) & (np.asarray(message_bytes) > 0), wait_s, 0.0)

    def _asked(self, ranks: ArrayLike, message_bytes: ArrayLike) -> tuple[Floats, Floats]:
        ranks_, size = np.broadcast_arrays(np.asarray(ranks, float), np.asarray(message_bytes, float))
        return np.maximum(ranks_, 1.0), np.maximum(size, 1.0)

    def _on_wire(self, run: Run) -> float:
        return passes(self.operation) * (run.ranks - 1) / run.ranks

    def _seconds(self, run: Run, size: Floats) -> Floats:
        return run.seconds(size) + size / run.bytes_per_s * (self.bandwidth / self.links - 1.0)

    def _busy_s(self, run: Run, size: Floats) -> Floats:
        """All of the time but the shortest message's, and no less than the bytes need at the best rate."""
        shortest = self._seconds(run, np.asarray(run.points[0][0]))
        at_best = size / run.bytes_per_s * (self.bandwidth / self.links)
        return np.maximum(self._seconds(run, size) - shortest, at_best)


def _between(asked: Floats, known: ArrayLike, each: Sequence[Floats]) -> Floats:
    """*each* [known] element by element, interpolated to where *asked* lies among *known*; flat beyond its ends."""
    at = np.interp(asked, np.asarray(known, float), np.arange(len(each)))
    low = np.floor(at).astype(np.int64)[None]
    high = np.minimum(low + 1, len(each) - 1)
    below, above = (np.take_along_axis(np.stack(each), which, axis=0)[0] for which in (low, high))
    return np.asarray(below + (at - low[0]) * (above - below))


class Timings(Record):
    """What a file ``measured/PART/collectives.yaml`` says."""

    part: str
    bandwidth: BytesPerSecond
    """Scale-up rate of the part, one direction."""
    notes: str = ""
    collectives: dict[Operation, Annotated[tuple[Run, ...], Field(min_length=1)]]

    def for_links(self, part: str, bandwidth_bytes_per_s: float) -> dict[Operation, Timed]:
        """The same for *part* and its links."""
        scaled = part != self.part or bandwidth_bytes_per_s != self.bandwidth
        return {
            operation: Timed(
                operation=operation, bandwidth=self.bandwidth, links=bandwidth_bytes_per_s, scaled=scaled, runs=runs
            )
            for operation, runs in self.collectives.items()
        }

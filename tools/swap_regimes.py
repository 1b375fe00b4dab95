"""Where swapping pays: the main job by bandwidth of the host link and tokens a card, against recomputing all, against
the card alone and against half the batch.

    python tools/swap_regimes.py docs/images/swap-regimes.png

Host memory is given as much more bandwidth as the link, so that the link is what is varied. Every step is the engine's
for one micro-batch, without what transfers beside it take from compute. Half the batch is half the sequence a card,
with as many results kept on the card as there is room for. The rows of the table in docs/memory-tiers.md go to standard
output.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from joblib import Parallel, delayed

mpl.use("Agg")
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulator.engine.simulation import Part, Simulation
from simulator.forecast.assembly import assemble_job, find_architecture
from simulator.forecast.reading import read_scenario
from simulator.forecast.swap_schedule import schedule
from simulator.forecast.swapping import swappable
from simulator.program.job import Job
from simulator.program.swap import Swap
from simulator.program.training_step import TrainingStep
from simulator.report.paper import DOTS_PER_INCH, FAINT, INK, SIZE_INCHES, titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCENARIO = "scenarios/kimi-k3-lora-128xh200.yaml"
GB_PER_S = (25, 55, 160, 450)
TOKENS = (4096, 8192, 16384)
CLAIM = 15.0
PROCESSES = 2
MOST_SHOWN = 40.0
"""Gain in per cent at which colours end."""


@dataclass(frozen=True)
class Point:
    """Seconds of a micro-batch."""

    tokens: int
    gb_per_s: int
    recompute_s: float
    card_s: float
    """With the best choice over a link that carries nothing."""
    half_s: float
    """The same with half the tokens."""
    swap_s: float

    @property
    def gains(self) -> tuple[float, float, float]:
        """In per cent, over recomputing all, over the card alone and over half the batch."""
        others = self.recompute_s, self.card_s, 2 * self.half_s
        return tuple(100 * (other / self.swap_s - 1) for other in others)  # type: ignore[return-value]


def main() -> None:
    """Write the chart named first, and print the rows of the table."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/swap_regimes.py PNG")
    sizes = sorted({size for tokens in TOKENS for size in (tokens, tokens // 2)})
    asked = [(tokens, rate) for tokens in TOKENS for rate in GB_PER_S]
    processes = Parallel(n_jobs=PROCESSES, return_as="generator")
    alone = dict(zip(sizes, processes(delayed(_alone_s)(size) for size in sizes), strict=True))
    points = []
    for (tokens, rate), taken_s in zip(asked, processes(delayed(_swapped_s)(*one) for one in asked), strict=True):
        points.append(Point(tokens, rate, *alone[tokens], alone[tokens // 2][1], taken_s))
        sys.stdout.write(_row(points[-1]) + "\n")
        sys.stdout.flush()
    _draw(points, Path(sys.argv[1]))


def _alone_s(tokens: int) -> tuple[float, float]:
    """Recomputing all, and with the choice of a link over which nothing can travel."""
    job, names = _job(tokens)
    alone = tuple(Swap(card=swap.card) for swap in schedule(_with_link(job, 1.0), names, 1))
    return _ran_s(job), _ran_s(replace(job, swaps=alone))


def _swapped_s(tokens: int, gb_per_s: int) -> float:
    """With the choice of a link of that rate."""
    job, names = _job(tokens)
    linked = _with_link(job, gb_per_s * 1e9)
    return _ran_s(replace(linked, swaps=schedule(linked, names, 1)))


def _job(tokens: int) -> tuple[Job, tuple[str, ...]]:
    scenario, folder = read_scenario(SCENARIO, [f"training.sequence_length={tokens}"])
    return assemble_job(scenario, folder), swappable(find_architecture(scenario.model, folder), scenario.training)


def _with_link(job: Job, bytes_per_s: float) -> Job:
    """*job* whose cards reach host memory at *bytes_per_s* each way, and the memory of which keeps up."""
    node = job.cluster.node
    link, ddr = node.host_link, node.ddr
    more = max(1.0, bytes_per_s / link.d2h.value)
    rate = link.d2h.model_copy(update={"value": bytes_per_s})
    both = link.d2h.model_copy(update={"value": 2 * bytes_per_s})
    faster = ddr.model_copy(
        update={"bandwidth": ddr.bandwidth.model_copy(update={"value": more * ddr.bandwidth.value})}
    )
    changed = link.model_copy(update={"h2d": rate, "d2h": rate, "both": both})
    return replace(
        job, cluster=replace(job.cluster, node=node.model_copy(update={"host_link": changed, "ddr": faster}))
    )


def _ran_s(job: Job) -> float:
    programs = TrainingStep(job).programs(1)
    parts = [Part(program.tasks, job.folding.behaviours) for program in programs]
    return max(recording.step_ns for recording in Simulation(*parts).run()) / 1e9


def _row(point: Point) -> str:
    """A row of the table."""
    seconds = " | ".join(f"{value:.2f}" for value in (point.recompute_s, point.card_s, point.swap_s))
    gains = " | ".join(f"{gain:+.1f} %" for gain in point.gains)
    return f"| {point.tokens:,} | {point.gb_per_s} | {seconds} | {gains} |"


def _draw(points: list[Point], path: Path) -> None:
    figure = Figure(figsize=SIZE_INCHES, facecolor="white")
    least, most = (pick(point.gains[0] for point in points) for pick in (min, max))
    host = max(point.gains[1] for point in points)
    titles(
        figure, f"Swapping gains {least:.0f} to {most:.0f} % over recomputing; the host adds at most {host:.0f} %", ""
    )
    said = "Kimi K3.1, LoRA on 128 H200: tokens a second that the best swap gains, by link and tokens a card"
    figure.text(0.015, 0.905, said, fontsize=12, color=FAINT, va="center")
    shown = ("over recomputing all", "over results on the card alone", "over half the batch")
    for number, title in enumerate(shown):
        axes = figure.add_axes((0.075 + number * 0.31, 0.2, 0.285, 0.58))
        _map(axes, [point.gains[number] for point in points], title, first=number == 0)
    figure.text(0.075, 0.055, f"in per cent; framed: the claim of {CLAIM:.0f} % holds", fontsize=12, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})


def _map(axes: Axes, gains: list[float], title: str, *, first: bool) -> None:
    """One comparison: a row for each number of tokens, a column for each link."""
    table = np.reshape(gains, (len(TOKENS), len(GB_PER_S)))
    axes.imshow(table, cmap="RdBu", vmin=-MOST_SHOWN, vmax=MOST_SHOWN, aspect="auto")
    for (row, column), gain in np.ndenumerate(table):
        ink = "white" if abs(gain) > 0.6 * MOST_SHOWN else INK
        axes.text(column, row, f"{gain:+.1f}", ha="center", va="center", fontsize=17, color=ink)
        if gain >= CLAIM:
            corner = column - 0.47, row - 0.47
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=INK, linewidth=2.2))
    axes.set_title(title, fontsize=15, color=INK, pad=10)
    axes.set_xticks(range(len(GB_PER_S)), [str(rate) for rate in GB_PER_S], fontsize=13)
    axes.set_yticks(range(len(TOKENS)), [f"{tokens:,}" for tokens in TOKENS] if first else [], fontsize=13)
    axes.set_xlabel("host link, GB/s each way and card", fontsize=12)
    if first:
        axes.set_ylabel("tokens a card", fontsize=12)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


if __name__ == "__main__":
    main()

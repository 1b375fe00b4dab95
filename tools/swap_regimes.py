"""Where swapping pays: the main job by bandwidth of the host link and tokens a card, against recomputing and half the
batch.

    python tools/swap_regimes.py docs/images/swap-regimes.png

Host memory is given as much more bandwidth as the link, so that the link is what is varied. Every step is the engine's
for one micro-batch, without what transfers beside it take from compute. Half the batch is half the sequence a card,
with as many results kept on the card as there is room for.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from simulator.engine.simulation import Part, Simulation
from simulator.forecast.assembly import assemble_job, find_architecture
from simulator.forecast.reading import read_scenario
from simulator.forecast.swap_schedule import schedule
from simulator.forecast.swapping import swappable
from simulator.program.job import Job
from simulator.program.swap import Swap
from simulator.program.training_step import TrainingStep

SCENARIO = "scenarios/kimi-k3-lora-128xh200.yaml"
GB_PER_S = (25, 55, 160, 450)
TOKENS = (4096, 8192)


def main() -> None:
    """Write the chart named first, and print a line for each point."""
    rows = [row for tokens in TOKENS for row in _of_tokens(tokens)]
    _draw(rows, Path(sys.argv[1]))


def _of_tokens(tokens: int) -> list[dict[str, Any]]:
    scenario, folder = read_scenario(SCENARIO, [f"training.sequence_length={tokens}"])
    job = assemble_job(scenario, folder)
    names = swappable(find_architecture(scenario.model, folder), scenario.training)
    again_s, card_s = _ran_s(job), _card_alone_s(job, names)
    half_s = _card_alone_s(assemble_job(*read_scenario(SCENARIO, [f"training.sequence_length={tokens // 2}"])), names)
    rows = []
    for rate in GB_PER_S:
        linked = _with_link(job, rate * 1e9)
        choice = schedule(linked, names)
        taken_s = _ran_s(replace(linked, swap=choice))
        row = {
            "tokens": tokens,
            "gb_per_s": rate,
            "recompute_s": again_s,
            "card_alone_s": card_s,
            "half_s": half_s,
            "swap_s": taken_s,
            "over_recompute": again_s / taken_s - 1,
            "over_half_batch": 2 * half_s / taken_s - 1,
            "host": dict(choice.host),
            "card": dict(choice.card),
        }
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        rows.append(row)
    return rows


def _card_alone_s(job: Job, names: tuple[str, ...]) -> float:
    """With the choice of a link over which nothing can travel."""
    return _ran_s(replace(job, swap=Swap(card=schedule(_with_link(job, 1.0), names).card)))


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


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    titles = {
        "over_recompute": "against recomputing all",
        "over_half_batch": "against half the sequence a card, results kept on it",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for tokens in TOKENS:
            own = [row for row in rows if row["tokens"] == tokens]
            axis.plot(GB_PER_S, [100 * row[key] for row in own], marker="o", label=f"{tokens:,} tokens a card")
        axis.axhline(15, color="#888888", linestyle=":", linewidth=1)
        axis.text(GB_PER_S[-2], 13.6, "the claim: 15 %", color="#666666", fontsize=8)
        axis.set_xscale("log")
        axis.set_xticks(GB_PER_S, [str(rate) for rate in GB_PER_S])
        axis.minorticks_off()
        axis.set_title(title)
        axis.set_xlabel("host link, GB/s each way and card")
    axes[0].set_ylabel("more tokens a second, %")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()

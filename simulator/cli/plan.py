"""`rackcast plan`: which split to run, or a sweep over values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.guesses import tell_guesses
from simulator.cli.options import AsJson, Changes, ScenarioName

if TYPE_CHECKING:
    from simulator.forecast.scenario import Scenario
    from simulator.planner.store import Store
    from simulator.planner.sweep import Heard
    from simulator.planner.workers import Workers

_SAY_EVERY_S = 15.0


class Backend(StrEnum):
    """Where forecasts run."""

    local = "local"
    dask = "dask"
    ray = "ray"


def plan(
    scenario: ScenarioName,
    changes: Changes = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="PATH=A,B,C",
            help="Forecast every combination of these values instead of looking for splits. May be repeated.",
        ),
    ] = None,
    simulate: Annotated[
        int, typer.Option("--simulate", metavar="N", min=1, help="Splits that are simulated at most.")
    ] = 8,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show splits that were not simulated too, and why each loses.")
    ] = False,
    backend: Annotated[
        Backend, typer.Option("--backend", help="Processes of this machine, or a Dask or Ray cluster.")
    ] = Backend.local,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Forecasts at once; -1: one a core.")] = -1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder for results; what is there is not run again. [out/NAME-plan]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank every valid split of the job over its cards: bounded, the best simulated, the winner and why others lose.

    The scenario's own layout is tried first where it is a candidate, with the `dp_shard` that its cards leave. With
    `campaign.most_accelerators` every size of cluster up to that is planned, and the cheapest that meets deadline and
    budget named. Results are kept in parquet: a second run goes on where the first one ended.
    """
    conclude(lambda: _answer(scenario, changes or [], over or [], (simulate, explain, backend, jobs, out)), as_json)


def _answer(
    name: str, changes: list[str], over: list[str], settings: tuple[int, bool, Backend, int, Path | None]
) -> Answer:
    from simulator.planner.store import Store
    from simulator.planner.workers import workers

    simulate, explain, backend, jobs, out = settings
    folder = out or Path("out") / f"{Path(name).stem}-{'sweep' if over else 'plan'}"
    store = Store(folder)
    with _heard() as hear, workers(backend.value, jobs) as pool:
        if over:
            return _sweep(name, changes, over, store, pool, hear)
        return _plan(name, changes, store, pool, hear, simulate, explain=explain)


def _sweep(name: str, changes: list[str], over: list[str], store: Store, pool: Workers, hear: Heard) -> Answer:
    from simulator.planner.over import sweep
    from simulator.report.files import replacing
    from simulator.report.paper import write_png
    from simulator.report.plan_table import sweep_table
    from simulator.report.sweep_chart import sweep_chart

    result = sweep(name, changes, over, store, pool, hear)
    if any(case["step_time_s"] is not None for case in result["cases"]):
        with replacing(store.folder / "sweep.png") as file:
            write_png(sweep_chart(result), file)
        say(f"wrote sweep.png, {store.file.name} into {store.folder}")
    return Answer(result, lambda: sweep_table(result))


def _plan(
    name: str, changes: list[str], store: Store, pool: Workers, hear: Heard, simulate: int, *, explain: bool
) -> Answer:
    from simulator.documents import read
    from simulator.forecast.reading import find_training, placing
    from simulator.forecast.scenario import Scenario
    from simulator.planner.plan import plan as find
    from simulator.report.files import replacing
    from simulator.report.paper import write_png
    from simulator.report.plan_chart import plan_chart
    from simulator.report.plan_table import plan_table

    path = find_training(name, changes)
    document = read(path, Scenario, changes)
    campaign = document.content.campaign
    with placing(document):
        if campaign is not None and campaign.most_accelerators is not None:
            answer = _size(document.content, path.parent, store, pool, hear, simulate)
            tell_guesses(document.content, path.parent)
            return answer
        result = find(document.content, path.parent, store, pool, most=simulate, hear=hear)
    tell_guesses(document.content, path.parent)
    if result["winner"]:
        with replacing(store.folder / "plan.png") as file:
            write_png(plan_chart(result), file)
        say(f"wrote plan.png, {store.file.name} into {store.folder}")
    return Answer(result, lambda: plan_table(result, explain=explain))


def _size(scenario: Scenario, folder: Path, store: Store, pool: Workers, hear: Heard, simulate: int) -> Answer:
    from simulator.planner.sizing import size
    from simulator.report.files import replacing
    from simulator.report.paper import write_png
    from simulator.report.sizing_chart import sizing_chart
    from simulator.report.sizing_table import sizing_table

    result = size(scenario, folder, store, pool, most=simulate, hear=hear, say=say)
    if any(one["wall_s"] for one in result["sizes"]):
        with replacing(store.folder / "sizes.png") as file:
            write_png(sizing_chart(result), file)
        say(f"wrote sizes.png, {store.file.name} into {store.folder}")
    return Answer(result, lambda: sizing_table(result))


@contextmanager
def _heard() -> Iterator[Heard]:
    """Tells how many forecasts are done and the time left: on a bar for a person, else a line now and then."""
    from time import monotonic

    from simulator.units import human_time

    said = [monotonic()]

    def told(done: int, total: int, left_s: float | None) -> str:
        return f"{done} of {total} forecasts" + (f", {human_time(left_s)} left" if left_s else "")

    with progress() as show:

        def hear(done: int, total: int, left_s: float | None) -> None:
            if show is not None:
                show(told(done, total, left_s), done / total if total else 1.0)
            elif monotonic() - said[0] >= _SAY_EVERY_S:
                said[0] = monotonic()
                print(told(done, total, left_s), file=sys.stderr)  # noqa: T201

        yield hear

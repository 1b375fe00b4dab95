"""`rackcast calibrate`: time the GPUs at hand, and write a set of curves that forecasts can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.options import AsJson

if TYPE_CHECKING:
    from simulator.calibration.profile import Profile
    from simulator.calibration.session import Hear, Progress


def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Half as many sizes; under four minutes on two H200.")] = False,
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="DIR", help="Folder of profiles to write into; what it holds of this GPU is kept."
        ),
    ] = Path("profiles"),
    as_json: AsJson = False,
) -> None:
    """Time kernels, launches, copies and collectives on the GPUs at hand and fit curves to them.

    Writes measured/GPU/, accelerators/GPU.yaml, nodes/NxGPU.yaml and report.html into DIR. Finished tables are kept:
    a run that was killed goes on where it was. Needs PyTorch, and GPUs of one kind.
    """
    conclude(lambda: _answer(quick, output), as_json)


def _answer(quick: bool, output: Path) -> Answer:
    import time

    from simulator.calibration.machine import find
    from simulator.calibration.profile import make_profile, part_of
    from simulator.calibration.session import run
    from simulator.report.calibration_report import calibration_html
    from simulator.report.calibration_table import calibration_table

    begun, machine = time.monotonic(), find()
    part = part_of(machine)
    say(f"found {machine.gpus} x {machine.gpu} ({part}), driver {machine.driver}, torch {machine.torch}")
    with _told() as hear:
        tables = run(machine, output / "measured" / part / "points", quick=quick, hear=hear)
    say("fitting curves")
    profile = make_profile(tables, machine, output)
    report = output / "report.html"
    report.write_text(calibration_html(profile))
    found = _object(profile) | {
        "gpu": machine.gpu,
        "gpus": machine.gpus,
        "node": str(output / "nodes" / f"{machine.gpus}x-{part}.yaml"),
        "report": str(report),
        "refused": sum(len(table.refused) for table in tables),
        "wall_s": round(time.monotonic() - begun, 1),
    }
    return Answer(found, lambda: calibration_table(found))


@contextmanager
def _told() -> Iterator[Hear]:
    """A bar with the time left where a person looks at it, and a line for each finished table everywhere."""
    with progress() as bar:

        def hear(at: Progress) -> None:
            minutes, seconds = divmod(round(at.left_s), 60)
            left = f"{minutes} min {seconds:02d} s left"
            if bar is not None:
                bar(f"{at.table} {at.done}/{at.shapes}, {left}", at.fraction)
            if at.finished:
                say(f"{at.table}: {at.shapes} shapes, {left}")

        yield hear


def _object(profile: Profile) -> dict[str, Any]:
    fits = [
        {
            "kind": fit.curve.kind,
            "points": fit.used,
            "median_abs_error": fit.median_error,
            "worst_abs_error": fit.worst_error,
            "figures": {one.name: [one.value, one.low, one.high] for one in fit.estimates},
            "carried_over": list(fit.carried),
        }
        for fit in profile.fits
    ]
    collectives = {
        form.operation: {one.name: [one.value, one.low, one.high] for one in form.estimates}
        | {"median_abs_error": form.median_error, "worst_abs_error": form.worst_error}
        for form in profile.forms
    }
    skewed = [{"bytes": size, "error": error} for size, error in profile.skewed]
    told = {"accelerator": profile.part, "like": profile.like, "clock_s": profile.clock_s, "fits": fits}
    return told | {"collectives": collectives, "skewed": skewed, "files": [str(file) for file in profile.files]}

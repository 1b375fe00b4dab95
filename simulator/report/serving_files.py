"""The files that `rackcast run` writes of a serving loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from simulator.report.files import folder, replacing, write_text
from simulator.report.paper import write_png
from simulator.report.serving_chart import serving_chart
from simulator.report.serving_iteration_chart import iteration_chart
from simulator.report.serving_page import serving_page
from simulator.report.summary_json import write_summary

if TYPE_CHECKING:
    from simulator.forecast.serving.forecast import ServingForecast
    from simulator.report.origin import Origin


def write_serving(forecast: ServingForecast, out: Path, origin: Origin) -> list[Path]:
    """Write report.html, which says what the forecast came of (*origin*), summary.json and, of a loop that ran,
    loop.png and iteration.png into the folder *out*, all together.

    Raise :exc:`OSError`, whose text is meant for the user, where *out* cannot be written.
    """
    folder(out)
    summary, course = forecast.summary, forecast.course
    writers: dict[str, Callable[[BinaryIO], None]] = {
        "report.html": lambda file: write_text(serving_page(forecast, origin), file),
        "summary.json": lambda file: write_summary(summary, file),
    }
    if course is not None:
        writers["loop.png"] = lambda file: write_png(serving_chart(course, summary), file)
        writers["iteration.png"] = lambda file: write_png(iteration_chart(summary), file)
    with ExitStack() as together:
        for name, write in writers.items():
            write(together.enter_context(replacing(out / name)))
    return [out / name for name in writers]

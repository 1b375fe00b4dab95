"""What people and programs look at: pages, charts, Perfetto trace, parquet, tables.

Importing this costs little: matplotlib, Jinja2, pyarrow and rich are imported by the functions that draw with them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from simulator.report.files import folder, replacing, write_text
from simulator.report.memory_chart import memory_chart
from simulator.report.paper import write_png
from simulator.report.parquet import write_parquet
from simulator.report.perfetto import write_trace
from simulator.report.summary_json import write_summary
from simulator.report.timeline_chart import timeline_chart
from simulator.report.training_page import training_page

if TYPE_CHECKING:
    from simulator.forecast.forecast import Forecast
    from simulator.report.origin import Origin


def write_all(forecast: Forecast, out: Path, origin: Origin) -> list[Path]:
    """Write report.html, which says what the forecast came of (*origin*), summary.json, timeline.png, memory.png,
    trace.json.gz and timeline.parquet into the folder *out*.

    All six appear together, after the last is complete: a failure or an interruption leaves what was there before.
    The same forecast gives the same bytes. Raise :exc:`OSError`, whose text is meant for the user, where *out* cannot
    be written.
    """
    folder(out)
    timeline, memory, summary = forecast.timeline, forecast.memory, forecast.summary
    writers: dict[str, Callable[[BinaryIO], None]] = {
        "report.html": lambda file: write_text(training_page(forecast, origin), file),
        "summary.json": lambda file: write_summary(summary, file),
        "timeline.png": lambda file: write_png(timeline_chart(timeline, summary), file),
        "memory.png": lambda file: write_png(memory_chart(memory, timeline, summary), file),
        "trace.json.gz": lambda file: write_trace(timeline, memory, file),
        "timeline.parquet": lambda file: write_parquet(timeline, file),
    }
    with ExitStack() as together:
        for name, write in writers.items():
            write(together.enter_context(replacing(out / name)))
    return [out / name for name in writers]


__all__ = ["write_all"]

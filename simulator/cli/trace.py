"""`rackcast trace`: what a recording of expert routing says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.bar import progress
from simulator.cli.guard import Answer, conclude, say
from simulator.cli.options import AsJson

if TYPE_CHECKING:
    from simulator.routing.trace import Trace


def trace(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A recorder's file or folder, or the name of a shipped trace."),
    ],
    ep: Annotated[
        int | None, typer.Option("--ep", metavar="N", help="Ranks that share the experts. [default: at most 8]")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for charts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell which experts and ranks of a routing trace are hot.

    Reads what SGLang, vLLM, Megatron-Core, TensorRT-LLM and transformers record, and JSON or CSV with counts.
    """
    conclude(lambda: _answer(file, ep, out), as_json)


def _answer(name: str, ep: int | None, out: Path | None) -> Answer:
    from simulator.report.trace_table import trace_table
    from simulator.routing.library import find_trace
    from simulator.routing.reading import read_trace
    from simulator.routing.recording import unheard
    from simulator.routing.summary import trace_summary, usual_ep

    path = find_trace(name, Path())
    with progress() as hear:
        found = read_trace(path, partial(hear, "reading") if hear else unheard)
    ranks = usual_ep(found.table) if ep is None else ep
    summary = trace_summary(found, ranks)
    if out is not None:
        _draw(found, ranks, out)
    return Answer(summary, lambda: trace_table(summary))


def _draw(found: Trace, ep: int, out: Path) -> None:
    from simulator.report.drift_chart import FEWEST_WINDOWS, drift_chart
    from simulator.report.files import folder, replacing
    from simulator.report.paper import write_png
    from simulator.report.routing_chart import routing_chart
    from simulator.routing.windows import windows

    charts = {"routing.png": routing_chart(found.table, ep)}
    if len(found.first_steps) >= FEWEST_WINDOWS:
        charts["drift.png"] = drift_chart(windows(found, ep), found.name)
    folder(out)
    for name, chart in charts.items():
        with replacing(out / name) as file:
            write_png(chart, file)
    say(f"wrote {' and '.join(charts)} into {out}")

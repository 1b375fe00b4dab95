"""`rackcast model`: what is understood of a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.guard import Answer, conclude
from simulator.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simulator.model.architecture import Architecture
    from simulator.model.census import Census


def model(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG_JSON", help="A config.json or its folder, or the name of a shipped model.")
    ],
    as_json: AsJson = False,
) -> None:
    """Tell what is understood of a config.json.

    Parameters, bytes and layers; what is approximated, and fields that nothing reads.
    """
    conclude(lambda: _answer(config), as_json)


def _answer(config: str) -> Answer:
    from simulator.model.census import census
    from simulator.model.config import read_architecture

    architecture = read_architecture(_find(config))
    counts = census(architecture)
    value = {
        "model_type": architecture.model_type,
        "total_parameters": counts.total_parameters,
        "active_parameters": counts.active_parameters,
        "bytes_bf16": counts.bytes_bf16,
        "layers": len(architecture.layers),
        "unknown_fields": list(architecture.unknown_fields),
        "approximations": list(architecture.approximations),
    }
    return Answer(value, lambda: _screen(counts, architecture))


def _find(config: str) -> Path:
    """What exists is taken as it is, so that reading it tells what is wrong with it."""
    from simulator.shipped import exists, locate

    path = Path(config)
    if config and exists(path):
        return path
    return locate(config, kind="model", folder=Path(), shipped_in=("scenarios", "models"), suffixes=(".json",))


def _screen(counts: Census, architecture: Architecture) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    from simulator.report.tables import model_table

    notes = [f"Approximated: {sentence}" for sentence in architecture.approximations]
    notes += [f"Nothing reads the field {name!r}." for name in architecture.unknown_fields]
    return Group(model_table(counts), *("", *map(escape, notes)) if notes else ())

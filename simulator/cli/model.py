"""`rackcast model`: what is understood of a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.guard import BAD_INPUT, DONE, Answer, conclude
from simulator.cli.options import AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simulator.model.architecture import Architecture
    from simulator.model.census import Census


def model(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG_JSON",
            help="A config.json or its folder, the name of a shipped model, or a folder of such files.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Tell what is understood of a config.json.

    Parameters, bytes and layers; what is approximated, and fields that nothing reads. Of a folder, a line a file.
    """
    conclude(lambda: _answer(config), as_json)


def _answer(config: str) -> Answer:
    from simulator.model.census import census
    from simulator.model.config import read_architecture

    path = _find(config)
    if files := _files(path):
        return _answer_of(files)
    architecture = read_architecture(path)
    counts = census(architecture)
    return Answer(_value(counts, architecture), lambda: _screen(counts, architecture))


def _files(path: Path) -> list[Path]:
    """The files of a folder that is not one model's own."""
    try:
        return sorted(path.glob("*.json")) if path.is_dir() and not (path / "config.json").exists() else []
    except OSError:
        return []


def _answer_of(files: list[Path]) -> Answer:
    """One entry a file; what cannot be read as a model is told beside those that can."""
    from simulator.documents.problem import InvalidDocument
    from simulator.model.census import census
    from simulator.model.config import read_architecture

    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for file in files:
        try:
            architecture = read_architecture(file)
        except InvalidDocument as error:
            problems += str(error).splitlines()
        else:
            found[file.stem] = _value(census(architecture), architecture)
    value = {"models": found, "problems": problems}
    return Answer(value, lambda: _screen_of(found, problems), BAD_INPUT if problems else DONE)


def _value(counts: Census, architecture: Architecture) -> dict[str, Any]:
    return {
        "model_type": architecture.model_type,
        "total_parameters": counts.total_parameters,
        "active_parameters": counts.active_parameters,
        "bytes_bf16": counts.bytes_bf16,
        "layers": len(architecture.layers),
        "unknown_fields": list(architecture.unknown_fields),
        "approximations": list(architecture.approximations),
    }


def _find(config: str) -> Path:
    """What exists is taken as it is, so that reading it tells what is wrong with it."""
    from simulator.shipped import exists, locate

    path = Path(config)
    if config and exists(path):
        return path
    return locate(config, kind="model", folder=Path(), shipped_in=("scenarios", "models"), suffixes=(".json",))


def _screen_of(found: dict[str, dict[str, Any]], problems: list[str]) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    from simulator.report.tables import models_table

    return Group(models_table(found), *("", *map(escape, problems)) if problems else ())


def _screen(counts: Census, architecture: Architecture) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    from simulator.report.tables import model_table

    notes = [f"Approximated: {sentence}" for sentence in architecture.approximations]
    notes += [f"Nothing reads the field {name!r}." for name in architecture.unknown_fields]
    return Group(model_table(counts), *("", *map(escape, notes)) if notes else ())

"""`rackcast model`: what is understood of a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.guard import Answer, conclude
from simulator.cli.options import AsJson


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
    from simulator.report.tables import model_table
    from simulator.shipped import locate

    path = Path(config)
    if not config or not path.exists():
        path = locate(config, kind="model", folder=Path(), shipped_in=("scenarios", "models"), suffixes=(".json",))
    architecture = read_architecture(path)
    result = census(architecture)
    return Answer(result, lambda: model_table(result))

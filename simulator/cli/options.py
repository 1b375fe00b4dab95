"""Arguments and flags that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

ScenarioName = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="A YAML file, or the name of a shipped scenario.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value, such as parallel.ep=64. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]

"""`rackcast schema`: JSON Schemas, for editors that complete and check YAML."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from simulator.cli.guard import Answer, conclude
from simulator.cli.options import AsJson


class Document(StrEnum):
    """The kinds of documents that a user can write."""

    scenario = "scenario"
    accelerator = "accelerator"
    node = "node"
    fabric = "fabric"
    curve = "curve"


def schema(
    document: Annotated[Document, typer.Argument(metavar="KIND", help="The kind of document.")] = Document.scenario,
    as_json: AsJson = False,
) -> None:
    """Print a JSON Schema, for editors.

    It is one JSON object with or without --json.
    """
    conclude(lambda: _answer(document), as_json)


def _answer(document: Document) -> Answer:
    import json

    found = _schema(document)
    return Answer(found, lambda: json.dumps(found, indent=2))


def _schema(document: Document) -> dict[str, Any]:
    from pydantic import BaseModel, TypeAdapter

    from simulator.forecast.scenario import Scenario
    from simulator.forecast.scenario_serving import ServingScenario
    from simulator.hardware.accelerator import AcceleratorSheet
    from simulator.hardware.curve import Curve
    from simulator.hardware.fabric import Fabric
    from simulator.hardware.node import Node

    models: dict[Document, type[BaseModel]] = {
        Document.accelerator: AcceleratorSheet,
        Document.node: Node,
        Document.fabric: Fabric,
        Document.curve: Curve,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if document is Document.scenario:
        kinds: TypeAdapter[Scenario | ServingScenario] = TypeAdapter(Scenario | ServingScenario)
        return dialect | {"title": "Scenario"} | kinds.json_schema()
    return dialect | models[document].model_json_schema()

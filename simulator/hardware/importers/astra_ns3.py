"""ASTRA-sim's logical dimensions for ns-3: sizes alone."""

from __future__ import annotations

import json

from simulator.documents.problem import escape
from simulator.hardware.importers import layers
from simulator.hardware.importers.dump import bad, whole
from simulator.hardware.topology import Dimension, Topology

FORMAT = "ASTRA-sim logical dimensions"

_MOST_CHARACTERS = 100_000


def recognises(text: str) -> bool:
    """Its one key."""
    return '"logical-dims"' in text


def read(text: str) -> Topology:
    """The dimensions, each taken as a switch. Raise :exc:`.dump.BadDump`."""
    if len(text) > _MOST_CHARACTERS:
        raise bad(f"longer than {_MOST_CHARACTERS} characters")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise bad(f"not JSON: {getattr(error, 'msg', 'nested too deeply')}", line) from None
    sizes = document.get("logical-dims") if isinstance(document, dict) else None
    if not isinstance(sizes, list) or not sizes or not all(isinstance(size, str | int) for size in sizes):
        raise bad(f'logical-dims: found {escape(repr(sizes))}, expected a list of sizes such as ["8", "2"]')
    dimensions = [Dimension("switch", whole(str(size), "a dimension", None, least=1), "logical") for size in sizes]
    untold = ["rates and latencies", "the shape of each dimension"]
    return layers.build(FORMAT, dimensions, untold, [f"{len(sizes)} dimensions were taken as switches"])

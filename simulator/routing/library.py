"""The routing table of a job: a recording carried to its model, a synthetic one, or a balanced one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.documents import Problem
from simulator.routing.error import RoutingError
from simulator.routing.reading import read_table
from simulator.routing.resample import layers_followed, resample
from simulator.routing.synthetic import synthesise
from simulator.routing.table import RoutingTable
from simulator.routing.token_resampling import resample_tokens
from simulator.shipped import exists, locate

CARRIED_TOKENS = 1024
"""Of each layer: what a token reaches is then known to 1.6 % of all tokens (one standard deviation)."""


def load_routing(
    trace: str | None, sigma: float | None, *, layers: int, experts: int, top_k: int, seed: int, folder: Path
) -> RoutingTable:
    """The table for *layers* MoE layers of *experts* experts, of which a token picks *top_k*.

    *trace* is a path, relative to *folder* too, or the name of a shipped trace, with ``#domain`` where the file has
    several; *sigma* is the spread of a synthetic one; with neither, all experts are equally popular. *seed* decides all
    chance. Raise :exc:`FileNotFoundError` for an unknown trace and :exc:`RoutingError` for a bad one.
    """
    if trace is not None and sigma is not None:
        message = f"found both a trace, {trace!r}, and a synthetic table, sigma {sigma:g}, expected one of them"
        raise RoutingError([Problem("scenario", None, "routing", message)])
    rng = np.random.default_rng(seed)
    if trace is not None:
        recorded = read_table(find_trace(trace, folder))
        table = resample(recorded, layers, experts, top_k, rng)
        return table if table.picks is not None else _with_tokens(table, recorded, top_k, rng)
    if sigma is not None:
        return synthesise(layers, experts, top_k, sigma, rng)
    return replace(synthesise(layers, experts, top_k, 0.0, rng), name="balanced (no trace given)")


def _with_tokens(table: RoutingTable, recorded: RoutingTable, top_k: int, rng: np.random.Generator) -> RoutingTable:
    """*table*, which was carried from *recorded*, with as much of its tokens' company as can be carried."""
    if recorded.picks is None:
        return table
    picks = [
        resample_tokens(recorded.picks[source], popularity, recorded.experts, CARRIED_TOKENS, top_k, rng)
        for source, popularity in zip(layers_followed(recorded, table.layers), table.popularity, strict=True)
    ]
    return replace(table, picks=np.stack(picks))


def find_trace(trace: str, folder: Path) -> str:
    """The recording that *trace* means: what is there under that name, with or without ``#choice``, or a shipped trace.
    Paths may be relative to *folder*. Raise :exc:`FileNotFoundError` that lists what is shipped.
    """
    file, mark, choice = trace.partition("#")
    for path in (folder / trace, folder / file):
        if path.name and exists(path):
            return str(path) if path.name == Path(trace).name else f"{path}{mark}{choice}"
    path = locate(
        file, kind="routing trace", folder=folder, shipped_in=("scenarios", "traces"), suffixes=(".json", ".csv")
    )
    return f"{path}{mark}{choice}"

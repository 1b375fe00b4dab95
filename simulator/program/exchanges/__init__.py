"""Ways of the rows to their experts: which rank sends how many to which. One file each, found by its NAME.

The network prices what they send; a way says nothing of links.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

from simulator.routing.coverage import Choice, reach, reach_of_tokens

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mix:
    """What a rank's tokens want; every rank's want the same."""

    tokens: float
    """Of one rank."""
    wanted: Rows
    """Rows for each expert-parallel rank, one for every expert that a token chose, [ep]."""
    reached: Rows
    """Chance that a token has an expert on each rank, [ep]."""
    entered: Rows
    """Chance that it has one in each node, [nodes]."""


def mixes_of(
    rows: npt.NDArray[np.int64], choice: Choice, members: int, destinations: npt.NDArray[np.int64] | None = None
) -> list[Mix]:
    """The mix of each layer behind *rows* [layers, ep, experts on the rank] of an expert-parallel group with *members*
    ranks in each node.

    *destinations* [layers, tokens, top_k]: the rank of each expert of recorded tokens, -1 for none, where they are
    known.
    """
    layers, ranks, popularity = *rows.shape[:2], rows.astype(np.float64)
    tokens, wanted = rows.sum(axis=(1, 2)) / choice.top_k / ranks, popularity.sum(axis=2) / ranks
    if destinations is None:
        nodes = popularity.reshape(layers, ranks // members, -1)
        reached, entered = reach(popularity, choice), reach(nodes, choice)
    else:
        # A sample's tokens may reach a rank a little more often than all tokens want it.
        in_node = wanted.reshape(layers, -1, members).sum(axis=2)
        seen = np.stack([reach_of_tokens(one, ranks) for one in destinations])
        seen_in_node = np.stack([reach_of_tokens(one // members, ranks // members) for one in destinations])
        reached, entered = (
            np.minimum(seen, wanted / tokens[:, None]),
            np.minimum(seen_in_node, in_node / tokens[:, None]),
        )
    return [Mix(*of_layer) for of_layer in zip(tokens.tolist(), wanted, reached, entered, strict=True)]


def no_buffer(_experts: int, _tokens: int, _row_bytes: float) -> float:
    """Of a way whose buffers come and go with its rows, or are small."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way."""

    sent: Callable[[Mix], Rows]
    """Rows from each rank (row) to each rank (column), [ep, ep], its own on the diagonal."""
    by_node: bool = False
    """It goes by which ranks share a node, so that these must lie evenly in nodes."""
    units: int | None = None
    """Compute units that run it; None: as many as the library opens channels."""
    once: bool = False
    """A token goes to a rank once, however many of its experts are there."""
    one_sided: bool = False
    """Ports write rows, and their number after them, straight into the other rank's memory: no host waits for it."""
    count_writes: int | None = None
    """Rounds of writes in which ranks tell each other how many rows will come; None: as a collective of the library."""
    most_tokens: int | None = None
    """That a rank may bring; None: any number."""
    buffer_bytes: Callable[[int, int, float], float] = no_buffer
    """Memory that a rank keeps for it, of experts, tokens of a rank, and bytes of a row."""


@cache
def exchanges() -> dict[str, Way]:
    """All ways by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.NAME: module.WAY for module in modules}

"""Parallel aggregated trees: gathers and scatters in a logarithmic number of steps, for groups of one member a node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.program.algorithms import Course, Group

NAME = "pat"
_BASE_S = 8e-6
_NETWORK_STEP_S = 14e-6 / 3.5
_RANK_S = 2.8e-6
_SHARE = 0.75


def courses(group: Group) -> Iterator[Course]:
    """The one course, with the Simple protocol."""
    if group.operation not in ("all_gather", "reduce_scatter"):
        return
    steps_s = np.floor(np.log2(group.domains)) * (_NETWORK_STEP_S + group.port_latency_s / 3.5)
    latency_s = _BASE_S + steps_s + group.spread.size * _RANK_S
    loads = group.spread.port_loads(group.on_wire_bytes)
    yield Course(NAME, group.inside == 1, loads, latency_s, _SHARE)

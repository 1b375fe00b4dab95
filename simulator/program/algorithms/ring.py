"""Rings through every member, one for each port; each buffer passes all of them, twice in an all-reduce.

A ring that leaves its node still makes most of its steps inside nodes, each after the one before. A broadcast goes from
the first member to the last, which are the same steps as a gather's, while every link carries all of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.hardware.collective import passes
from simulator.program.algorithms import PER_PROTOCOL, Course, Group

NAME = "ring"
_BASE_S = {"LL": 6.6e-6, "LL128": 14e-6, "Simple": 8.4e-6}
_NVLINK_STEP_S = {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6}
_PCIE_STEP_S = {"LL": 1.0e-6, "LL128": 2.5e-6, "Simple": 5.7e-6}
_NETWORK_STEP_S = {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14e-6}
_BARE_NETWORK_STEP_S = {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 14e-6}
"""With one member a node nothing hides under the steps inside."""
_POST_S = {"LL": 1e-6, "LL128": 1e-6, "Simple": 3e-6}
"""The host posts every step of a ring that leaves its node."""
_SHARE = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
_LL_BUS_BYTES_PER_S = {2: 39e9, 3: 20.4e9}
"""By nodes, 3 and more alike."""


def courses(group: Group) -> Iterator[Course]:
    """One for each protocol; LL128 needs links better than PCIe."""
    rounds, nodes, size = passes(group.operation), group.domains, group.spread.size
    between = rounds * (nodes - 1)
    within = rounds * (size - 1) - between
    step_s = _NVLINK_STEP_S if group.fast_links else _PCIE_STEP_S
    loads = group.spread.port_loads(group.on_wire_bytes)
    for protocol in PER_PROTOCOL:
        if protocol == "LL128" and not group.fast_links:
            continue
        network_s = np.where(group.inside == 1, _BARE_NETWORK_STEP_S[protocol], _NETWORK_STEP_S[protocol])
        posted_s = np.where(nodes > 1, _POST_S[protocol], 0.0)
        latency_s = (
            _BASE_S[protocol]
            + within * np.maximum(step_s[protocol], posted_s)
            + between * (network_s + group.port_latency_s)
        )
        bound = _LL_BUS_BYTES_PER_S[min(int(nodes.max()), 3)] if protocol == "LL" and nodes.max() > 1 else np.inf
        valid = np.ones(len(size), bool)
        yield Course(f"{NAME} {protocol}", valid, loads, latency_s, _SHARE[protocol], bound)

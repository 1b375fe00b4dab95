"""In-switch reduction over scale-up links, and trees between the nodes. All-reduce only.

Each member reduces and multicasts its part of the buffer through the switch. Between nodes every port carries its part
up and down; two nodes only swap it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.program.algorithms import Course, Group

NAME = "nvls"
_SWITCH_S = 25e-6
_NETWORK_STEP_S = 14e-6


def courses(group: Group) -> Iterator[Course]:
    """The one course, with the Simple protocol."""
    if group.operation != "all_reduce" or not group.switch_reduces:
        return
    members, nodes, size = group.inside, group.domains, group.message_bytes
    loads = group.spread.port_loads(np.where(nodes == 2, 1.0, 2.0) * size)
    loads[: group.scale_up_levels] = group.spread.port_loads(2.0 * size * (members - 1) / members)[
        : group.scale_up_levels
    ]
    latency_s = _SWITCH_S + 2 * np.floor(np.log2(nodes)) * (_NETWORK_STEP_S + group.port_latency_s)
    yield Course(NAME, members > 1, loads, latency_s, in_switch=True)

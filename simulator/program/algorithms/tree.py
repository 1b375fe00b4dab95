"""Two complementary trees over the nodes, a chain through the members of each: reduced upwards, broadcast downwards.

Every member passes the whole buffer on twice, a little more than in a ring; the steps grow with the logarithm of the
nodes. All-reduce only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.program.algorithms import PER_PROTOCOL, Course, Group

NAME = "tree"
_BASE_S = {"LL": 6.8e-6, "LL128": 14e-6, "Simple": 8.4e-6}
_NVLINK_STEP_S = {"LL": 0.6e-6, "LL128": 1.25e-6, "Simple": 4.0e-6}
_PCIE_STEP_S = {"LL": 1.0e-6, "LL128": 1.9e-6, "Simple": 4.0e-6}
_NETWORK_STEP_S = {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 14e-6}
_SHARE = {"LL": 0.92 / 3.8, "LL128": 0.92 * 120 / 128, "Simple": 0.92}


def courses(group: Group) -> Iterator[Course]:
    """One for each protocol; LL128 needs links better than PCIe."""
    if group.operation != "all_reduce":
        return
    step_s = _NVLINK_STEP_S if group.fast_links else _PCIE_STEP_S
    depth = np.floor(np.log2(group.domains))
    loads = group.spread.port_loads(2.0 * group.message_bytes)
    for protocol in PER_PROTOCOL:
        if protocol == "LL128" and not group.fast_links:
            continue
        chain_s = (group.inside - 1) * step_s[protocol]
        latency_s = _BASE_S[protocol] + 2 * (chain_s + depth * (_NETWORK_STEP_S[protocol] + group.port_latency_s))
        yield Course(f"{NAME} {protocol}", group.domains > 1, loads, latency_s, _SHARE[protocol])

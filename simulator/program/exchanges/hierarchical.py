"""Every token once to each node that holds experts of it, and inside over the fast links to their ranks.

A port sends to the port of the same place in the other node, and the rank there passes the token on, once to a rank
(deepseek-ai/DeepEP, normal kernels). Hops follow each other in small pieces, so the busiest links set the time. On the
way home a node sums before it sends.
"""

from __future__ import annotations

import numpy as np

from simulator.program.exchanges import Mix, Rows, Way

NAME = "hierarchical"
_UNITS = 20
"""Of DeepEP unless told otherwise (`Buffer.num_sms`, deepseek-ai/DeepEP@04b06f7a)."""
_COUNT_WRITES = 2
"""All ranks wait for each other, then each writes its counts (`notify_dispatch`, csrc/kernels/internode.cu)."""


def sent(mix: Mix) -> Rows:
    """Rows over ports and, inside a node, of all nodes' tokens that came in at a rank's place."""
    ranks, nodes = len(mix.reached), len(mix.entered)
    node = np.arange(ranks) // (ranks // nodes)
    place = np.arange(ranks) % (ranks // nodes)
    crossing = (place[:, None] == place[None, :]) & (node[:, None] != node[None, :])
    inside = node[:, None] == node[None, :]
    over_ports = mix.tokens * np.where(crossing, mix.entered[node][None, :], 0.0)
    passed_on = nodes * mix.tokens * np.where(inside, mix.reached[None, :], 0.0)
    return np.asarray(over_ports + passed_on)


WAY = Way(sent, by_node=True, once=True, units=_UNITS, count_writes=_COUNT_WRITES)

"""Every token once to each rank that holds experts of it."""

from __future__ import annotations

import numpy as np

from simulator.program.exchanges import Mix, Rows, Way

NAME = "deduplicated"
_UNITS = 20
"""Of DeepEP unless told otherwise (`Buffer.num_sms`, deepseek-ai/DeepEP@04b06f7a)."""
_COUNT_WRITES = 2
"""All ranks wait for each other, then each writes its counts (`notify_dispatch`, csrc/kernels/internode.cu)."""


def sent(mix: Mix) -> Rows:
    """On the way home the rank has summed what its experts made of the token."""
    return np.broadcast_to(mix.tokens * mix.reached, (len(mix.reached), len(mix.reached)))


WAY = Way(sent, once=True, units=_UNITS, count_writes=_COUNT_WRITES)

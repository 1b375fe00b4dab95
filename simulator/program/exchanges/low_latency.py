"""Every row by itself, which a port writes into the memory of its expert's rank: DeepEP's low-latency kernels.

Inside a node rows go over the fast links. The receiver polls for the number of rows that follows them, so the host need
not wait, and no compute unit is occupied while they travel (receive hooks). Each rank keeps room for the case that all
tokens of all ranks choose its experts, on both sides and twice over, for dispatch and combine in turn.
"""

from __future__ import annotations

from simulator.program.exchanges import Mix, Rows, Way
from simulator.program.exchanges.all_to_all import sent as sent_each

NAME = "low_latency"
_MOST_TOKENS = 1024
"""`FINISHED_SUM_TAG`: kernels count the rows from one rank below it."""
_HEADER_BYTES = 16
"""Before each row of a dispatch: where it comes from."""


def sent(mix: Mix) -> Rows:
    """As often as a token chose experts of a rank."""
    return sent_each(mix)


def buffer_bytes(experts: int, tokens: int, row_bytes: float) -> float:
    """A place to send from and one to receive in for each token and expert, both twice (csrc/config.hpp)."""
    return 2 * experts * tokens * (row_bytes + row_bytes + _HEADER_BYTES)


WAY = Way(sent, units=0, one_sided=True, most_tokens=_MOST_TOKENS, buffer_bytes=buffer_bytes)

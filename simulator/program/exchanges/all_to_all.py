"""Every row by itself straight to the rank of its expert, as torch.distributed and NCCL send them."""

from __future__ import annotations

import numpy as np

from simulator.program.exchanges import Mix, Rows, Way

NAME = "all_to_all"


def sent(mix: Mix) -> Rows:
    """A token goes to a rank as often as it chose experts there."""
    return np.broadcast_to(mix.wanted, (len(mix.wanted), len(mix.wanted)))


WAY = Way(sent)

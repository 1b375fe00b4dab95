"""What a simulation of a split writes down, so that a search takes on none that this machine has no memory for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.planner.splits import Splits

MOST_BYTES = 4e9
"""Records of one simulation at most: a laptop runs two at once."""
TASKS_A_PASS = 62
"""Of a layer: the main job's 46 thousand tasks are those of 93 layers in 4 forward and 4 backward passes."""
_ALONE, _BEYOND_FILLED = 4, 2
"""Micro-batches that are simulated without a pipeline, and those of a pipeline beyond two for each stage
(`simulator/forecast/simulate.py`).
"""
_TASK_BYTES = 4 * 8
"""When it was issued, taken up, begun and ended, for each behaviour."""


def records_bytes(splits: Splits, layers: int, batch: int) -> npt.NDArray[np.float64]:
    """About what the longest run of each of *splits* records of a model of so many *layers*, with *batch* sequences a
    step: its tasks, on all stages, for every behaviour, of which there is one for each expert-parallel rank.
    """
    sequences = splits["dp_replicate"] * splits["dp_shard"] * splits["micro_batch_sequences"]
    filled = np.where(splits["pp"] > 1, 2 * splits["pp"] + _BEYOND_FILLED, _ALONE)
    passes = 2 * np.minimum(batch // sequences, filled)
    return np.asarray(passes * layers * TASKS_A_PASS * _TASK_BYTES * splits["ep"] * splits["etp"], float)

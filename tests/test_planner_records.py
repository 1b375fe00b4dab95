"""What simulations of splits write down."""

import pytest

from simulator.planner.records import records_bytes
from simulator.planner.splits import Split, Splits


def test_records_grow_with_passes_and_expert_ranks() -> None:
    alone = Split(1, 128, 1, 1, 1, 64, 1, 3, 1, 1)
    pipeline = Split(1, 8, 1, 1, 16, 64, 2, 1, 0, 1)
    short = Split(1, 8, 1, 1, 16, 64, 2, 1, 0, 32)
    found = records_bytes(Splits.of([alone, pipeline, short]), layers=93, batch=512)
    # 4 micro-batches; 2 x 16 + 2 of 64; 512 / (8 x 32) = 2. Each twice 93 layers of 62 tasks, 32 bytes a behaviour.
    assert found == pytest.approx([4 * 2 * 93 * 62 * 32 * 64, 34 * 2 * 93 * 62 * 32 * 128, 2 * 2 * 93 * 62 * 32 * 128])

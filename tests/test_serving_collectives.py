from pathlib import Path

import pytest

from simulator.hardware.library import build_cluster
from simulator.program.serving.small_all_reduce import small_all_reduce_s

NODE = build_cluster("hgx-h200", "single-node", 8, Path())
RATE = NODE.levels[0].bandwidth_bytes_per_s * NODE.levels[0].share


def test_small_messages_are_read_from_all_others_in_one_shot() -> None:
    assert small_all_reduce_s(NODE, 8, 65_536) == pytest.approx(3.8e-6 + 7 * 65_536 / RATE)


def test_larger_ones_are_added_up_in_parts_and_gathered() -> None:
    assert small_all_reduce_s(NODE, 8, 2**20) == pytest.approx(7.6e-6 + 2 * 7 / 8 * 2**20 / RATE)
    assert small_all_reduce_s(NODE, 2, 2**20) == pytest.approx(3.8e-6 + 2**20 / RATE)


def test_the_library_takes_large_ones_many_ranks_and_links_that_were_not_timed() -> None:
    assert small_all_reduce_s(NODE, 8, 9 * 2**20) is None
    assert small_all_reduce_s(NODE, 16, 65_536) is None
    assert small_all_reduce_s(build_cluster("pcie-l40s", "single-node", 8, Path()), 8, 65_536) is None

"""The tool behind the table of expert exchanges, on two rows of it."""

import runpy
from math import comb
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "dispatch_accuracy.py"))


def test_tokens_kept_within_four_of_eight_nodes():
    mix = TOOL["mix_of"](TOOL["Asked"]("", "hierarchical", "dispatch", 64, 4096, 4))
    # Half of the nodes are chosen, and 8 of their 128 experts miss one of 32 in C(96, 8) of C(128, 8) ways.
    assert mix.entered == pytest.approx([(1 - comb(96, 8) / comb(128, 8)) / 2] * 8)


def test_a_dispatch_inside_a_node():
    asked = TOOL["Asked"]("", "hierarchical", "dispatch", 8, 4096, None)
    # 1,048 us measured (DeepEP V1 on H800).
    assert TOOL["priced_s"](asked, "hgx-h800", "single-node") == pytest.approx(1056e-6, rel=0.01)

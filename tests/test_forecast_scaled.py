"""A GPU whose kernels were not measured: most of its forecast is scaled, and the forecast says so."""

import pytest

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario


def grades(node):
    found = forecast(*read_scenario("llama3-8b-fsdp2-2xh200", (f"cluster.node={node}",))).summary
    return found["provenance"], found["step_time_s"]


def test_a_part_without_a_set_is_told_to_be_scaled():
    told, step = grades("hgx-b300")
    assert told["scaled"] == pytest.approx(0.99, abs=0.01)
    assert told["measured"] == pytest.approx(0.01, abs=0.01)
    # Its interval is wider than that of the part it is scaled from.
    measured, known = grades("hgx-h200")
    assert measured["measured"] > 0.9
    assert (step["p90"] - step["p10"]) / step["p50"] > 1.3 * (known["p90"] - known["p10"]) / known["p50"]

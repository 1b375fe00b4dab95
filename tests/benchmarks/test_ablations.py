"""Layouts of Qwen3-235B on 256 H100 and H800: errors as they are, and whether forecasts put the layouts in order.

A row takes up to five minutes, so that these are off by default like what measures speed; run with
`pytest tests/benchmarks/test_ablations.py --override-ini addopts=--strict-markers`. Others of `tests/ablations` are for
`rackcast validate`.
"""

from itertools import combinations
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.forecast.validation import validate

MARGIN = 0.03
ABLATIONS = Path(__file__).parents[1] / "ablations"
LAYOUTS = {
    "modelzoo": {
        "fsdp-tp2-ep8-b4": 0.215,
        "tp2-ep32-pp8-vpp4": 0.100,
        "tp2-ep32-pp8-vpp4-overlap": -0.024,
        "tp2-ep8-pp32-vpp3": -0.178,
        "tp4-ep8-pp8-vpp4": -0.113,
    },
    "xtuner": {"tp2-ep32-pp8-vpp4": -0.210, "tp2-ep8-pp8": -0.272, "tp2-ep8-pp32-vpp3": -0.114},
}
"""Error of the step time of each layout; the batch is the same in all of a source."""
CONCORDANCE = {"modelzoo": 0.5, "xtuner": 1.0}
"""Kendall's tau of forecast and measured times. FSDP with full recomputation and four sequences a micro-batch was the
fastest of five together with overlapped exchanges, and is forecast the third; 32 stages, with an all-to-all, were the
fourth and are forecast the second.
"""
LONG = {"s16384-cp1": 0.054, "s32768-cp2": 0.025}
"""Errors of tokens a second of long sequences."""


def kendall(pairs: list[tuple[float, float]]) -> float:
    """Concordant less discordant pairs, over all of them."""
    signs = [(a - c) * (b - d) for (a, b), (c, d) in combinations(pairs, 2)]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs)


def case(source: str, layout: str) -> Path:
    return ABLATIONS / source / f"{source}-qwen3-235b-{layout}.yaml"


@pytest.mark.benchmark(group="ablations")
@pytest.mark.parametrize("source", LAYOUTS)
def test_layouts_are_as_far_off_and_as_well_in_order_as_they_are(benchmark: BenchmarkFixture, source: str) -> None:
    paths = [case(source, layout) for layout in LAYOUTS[source]]
    found = benchmark.pedantic(lambda: list(validate(paths)), rounds=1)
    assert [one.error for one in found] == pytest.approx(list(LAYOUTS[source].values()), abs=MARGIN)
    assert kendall([(one.predicted, one.measured) for one in found]) == pytest.approx(CONCORDANCE[source])


@pytest.mark.benchmark(group="ablations")
def test_long_sequences_are_as_far_off_as_they_are(benchmark: BenchmarkFixture) -> None:
    found = benchmark.pedantic(lambda: list(validate([case("modelzoo", layout) for layout in LONG])), rounds=1)
    assert [one.error for one in found] == pytest.approx(list(LONG.values()), abs=MARGIN)

"""All of vTrain's rows of several nodes, 64 to 512 A100: their errors, and whether forecasts put them in order.

A row takes up to five minutes, so that they are off by default like what measures speed; run with
`pytest tests/benchmarks/test_vtrain.py --override-ini addopts=--strict-markers`.
"""

import csv
from pathlib import Path
from statistics import mean, median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from test_validation_vtrain import SEVERAL, error


def ranks(values: list[float]) -> list[int]:
    """Place of each value in ascending order."""
    order = sorted(values)
    return [order.index(value) for value in values]


def spearman(first: list[float], second: list[float]) -> float:
    """Correlation of ranks, for values that all differ."""
    n, apart = len(first), sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True))
    return 1 - 6 * apart / (n * (n**2 - 1))


@pytest.mark.benchmark(group="vtrain")
@pytest.mark.skipif(not SEVERAL.is_file(), reason="the published rows are not here")
def test_splits_over_many_nodes(tmp_path: Path, benchmark: BenchmarkFixture) -> None:
    with SEVERAL.open() as file:
        rows = list(csv.DictReader(file))
    measured = [float(row["iteration time (ms)"]) for row in rows]
    errors = benchmark.pedantic(lambda: [error(row, tmp_path, "fat-tree-hdr-4-ports") for row in rows], rounds=1)
    assert len(errors) == 55
    assert mean(map(abs, errors)) == pytest.approx(0.083, abs=0.01)
    assert median(map(abs, errors)) == pytest.approx(0.063, abs=0.01)
    forecast = [time * (1 + off) for time, off in zip(measured, errors, strict=True)]
    assert spearman(measured, forecast) == pytest.approx(0.968, abs=0.01)

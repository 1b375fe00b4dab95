from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing import RoutingTable, read_table
from simulator.routing.imitation import imitate
from simulator.routing.table import max_over_mean
from simulator.shipped import shipped

RECORDINGS = Path(__file__).parents[1].parent / "shared" / "facts" / "routing"
WORKLOADS = ("prefill_in1024", "prefill_in4096", "decode_in500out1500", "decode_in1000out1000")
DEGREES = (8, 16, 32, 64, 128)


def recording(workload: str) -> RoutingTable:
    path = RECORDINGS / f"deepseek-v3_{workload}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not beside this checkout; its licence does not let it be shipped")
    return read_table(path)


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> float:
    at = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), at, side="right") / sample.size for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("workload", WORKLOADS)
def test_rank_loads_are_distributed_over_layers_as_in_the_recording(workload):
    source = recording(workload)
    copies = [imitate(source, 58, 256, 8, np.random.default_rng(seed)) for seed in range(8)]
    for ep in DEGREES:
        real = max_over_mean(source.rank_load(ep))
        made = [max_over_mean(copy.rank_load(ep)) for copy in copies]
        # Two samples of 58 layers of one law are further apart than 0.25 once in twenty times.
        assert np.mean([kolmogorov_smirnov(real, each) for each in made]) < 0.19
        assert np.mean(made) == pytest.approx(real.mean(), rel=0.08)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_skew_is_distributed_over_layers_as_in_the_recording(workload):
    source = recording(workload)
    copy = imitate(source, 58, 256, 8, np.random.default_rng(0))
    for name in ("expert_max_over_mean", "gini", "zipf_exponent", "top_share"):
        real, made = getattr(source, name)(), getattr(copy, name)()
        assert kolmogorov_smirnov(real, made) < 0.2
        assert made.mean() == pytest.approx(real.mean(), rel=0.08)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_an_imitation_is_not_the_recording(workload):
    source = recording(workload)
    first, second = (imitate(source, 58, 256, 8, np.random.default_rng(seed)) for seed in (0, 1))
    for layer in range(58):
        assert np.corrcoef(first.counts[layer], source.counts[layer])[0, 1] < 0.9
    assert (first.counts != second.counts).any()


def test_a_layer_has_exactly_the_distribution_of_one_near_its_depth():
    source = read_table(shipped("scenarios", "traces", "olmoe-github.json"))
    copy = imitate(source, 3, 64, 8, np.random.default_rng(0))
    known = np.sort(source.popularity, axis=1)
    for row in np.sort(copy.popularity, axis=1):
        assert min(np.abs(known - row).max(axis=1)) < 1e-12


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(4, 200)),
    wanted=st.tuples(st.integers(1, 12), st.integers(4, 200)),
    top_k=st.integers(1, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_shape_keeps_bounds_and_determinism(shape, wanted, top_k, seed):
    source = RoutingTable(np.exp(np.random.default_rng(seed).standard_normal(shape)), "drawn")
    table = imitate(source, *wanted, top_k, np.random.default_rng(seed))
    assert table.counts.shape == wanted
    assert table.popularity.max() <= (1 + 1e-12) / top_k
    assert imitate(source, *wanted, top_k, np.random.default_rng(seed)).counts.tobytes() == table.counts.tobytes()

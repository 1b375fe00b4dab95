from pathlib import Path

import numpy as np
import pytest

from simulator.routing import RoutingError, RoutingTable, load_routing


def load(trace: str | None, sigma: float | None, *, folder: Path = Path("absent"), seed: int = 0) -> RoutingTable:
    return load_routing(trace, sigma, layers=92, experts=896, top_k=16, seed=seed, folder=folder)


def test_nothing_given_is_balanced_and_says_so():
    table = load(None, None)
    assert table.name == "balanced (no trace given)"
    assert (table.counts == 1.0).all()


def test_a_shipped_trace_by_name_takes_the_shape_of_the_model():
    table = load("olmoe-c4", None)
    assert (table.name, table.counts.shape) == ("olmoe-c4", (92, 896))
    assert table.source.endswith("resampled from 3 layers of 64 experts to 92 of 896")


def test_a_trace_of_the_right_shape_is_taken_as_it_is(tmp_path):
    (tmp_path / "mine.csv").write_text("layer,expert,count\n3,0,1\n3,1,2\n")
    table = load_routing("mine.csv", None, layers=1, experts=2, top_k=1, seed=0, folder=tmp_path)
    assert (table.counts.tolist(), table.recorded_layers) == ([[1, 2]], (3,))


def test_a_domain_of_a_file_beside_the_scenario(tmp_path):
    (tmp_path / "domains.json").write_text('{"counts_by_domain": {"c4": [[1, 1]], "code": [[1, 3]]}}')
    table = load_routing("domains#code", None, layers=1, experts=2, top_k=1, seed=0, folder=tmp_path)
    assert (table.name, table.counts.tolist()) == ("domains#code", [[1, 3]])


def recorded_tokens(folder: Path, *tokens: list[int]) -> str:
    np.save(folder / "tokens.npy", np.array(tokens).reshape(len(tokens), 1, -1))
    return "tokens.npy"


def test_a_trace_of_tokens_keeps_who_goes_with_whom(tmp_path):
    trace = recorded_tokens(tmp_path, [0, 1], [0, 1], [2, 3])
    table = load_routing(trace, None, layers=1, experts=4, top_k=2, seed=0, folder=tmp_path)
    assert table.picks is not None
    assert sorted(table.picks[0].tolist()) == [[0, 1], [0, 1], [2, 3]]


def test_company_is_carried_to_more_experts_and_layers(tmp_path):
    # Pairs of four experts become pairs of groups of two of eight experts.
    trace = recorded_tokens(tmp_path, [0, 1], [0, 1], [0, 1], [2, 3])
    table = load_routing(trace, None, layers=2, experts=8, top_k=2, seed=0, folder=tmp_path)
    assert table.picks is not None
    assert table.picks.shape == (2, 1024, 2)
    for popularity, picks in zip(table.popularity, table.picks, strict=True):
        popular = np.isin(picks, np.argsort(popularity)[4:]).sum(axis=1)
        assert set(popular.tolist()) == {0, 2}


def test_the_seed_decides_all_chance():
    for trace, sigma in (("olmoe-github", None), (None, 0.8)):
        assert load(trace, sigma).counts.tobytes() == load(trace, sigma).counts.tobytes()
        assert not np.array_equal(load(trace, sigma).counts, load(trace, sigma, seed=1).counts)


def test_synthetic():
    assert load(None, 0.8).name == "log-normal, sigma 0.8"


def test_an_unknown_trace_lists_the_shipped_ones():
    with pytest.raises(FileNotFoundError, match=r"no routing trace 'olmo'.*: olmoe-arxiv, .*olmoe-wikipedia"):
        load("olmo", None)


def test_both_given_is_refused():
    with pytest.raises(RoutingError, match=r"found both a trace, 'olmoe-c4', and a synthetic table, sigma 1"):
        load("olmoe-c4", 1.0)

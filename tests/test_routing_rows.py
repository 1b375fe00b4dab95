import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from simulator.routing import RoutingTable, rows_per_expert, source_rows, synthesise
from simulator.routing.cap import cap_counts


def table(*counts: float) -> RoutingTable:
    return RoutingTable(np.array([counts]), "by hand")


def test_largest_remainder_by_hand():
    # Shares 0.5, 0.3, 0.2 of 7 rows are 3.5, 2.1, 1.4: the seventh row goes to the largest remainder.
    assert rows_per_expert(table(5, 3, 2), 0, tokens=7, top_k=1).tolist() == [4, 2, 1]


def test_ties_go_to_the_lower_expert():
    assert rows_per_expert(table(1, 1, 1, 1), 0, tokens=3, top_k=2).tolist() == [2, 2, 1, 1]


def test_no_expert_has_more_rows_than_tokens():
    # 0.8 of 2 x 10 rows would be 16; the bound is 10, and the cut 6 rows go to the others in proportion 3 : 1.
    assert rows_per_expert(table(16, 3, 1), 0, tokens=10, top_k=2).tolist() == [10, 8, 2]


def test_a_second_expert_can_reach_the_bound_by_what_the_first_loses():
    assert cap_counts(np.array([[90.0, 8.0, 1.0, 1.0]]), 2).tolist() == [[50.0, 40.0, 5.0, 5.0]]
    assert cap_counts(np.array([[80.0, 19.0, 0.5, 0.5]]), 3) == pytest.approx(
        np.array([[100 / 3, 100 / 3, 50 / 3, 50 / 3]])
    )


def test_experts_never_recorded_fill_up_when_too_few_were_chosen():
    assert rows_per_expert(table(1, 0, 0, 0), 0, tokens=6, top_k=2).tolist() == [6, 2, 2, 2]


def test_every_expert_gets_every_token_when_all_are_picked():
    assert rows_per_expert(table(9, 1, 0), 0, tokens=5, top_k=3).tolist() == [5, 5, 5]


@pytest.mark.parametrize("top_k", [0, 4])
def test_a_token_cannot_pick_more_experts_than_there_are(top_k):
    with pytest.raises(ValueError, match=f"top_k is {top_k}, but a token can pick 1 to 3 different experts"):
        rows_per_expert(table(1, 1, 1), 0, tokens=5, top_k=top_k)


counts_of_a_layer = arrays.arrays(
    np.float64, st.integers(1, 40), elements=st.one_of(st.just(0.0), st.floats(1e-3, 1e15))
).filter(lambda counts: counts.sum() > 0)


@given(counts=counts_of_a_layer, tokens=st.integers(0, 10**9), data=st.data())
def test_rows_sum_exactly_and_respect_the_tokens(counts, tokens, data):
    top_k = data.draw(st.integers(1, counts.size))
    rows = rows_per_expert(RoutingTable(counts[None], "drawn"), 0, tokens, top_k)
    assert rows.sum() == tokens * top_k
    assert rows.min() >= 0
    assert rows.max() <= tokens


def test_source_rows_by_hand():
    # Rows lined up by expert, 0 0 0 1 1 2 2 2, are dealt in turn to two ranks.
    assert source_rows(np.array([3, 2, 3]), ranks=2).tolist() == [[2, 1, 1], [1, 1, 2]]


def test_source_rows_of_several_layers_at_once():
    rows = np.array([[3, 2, 3], [0, 8, 0]])
    assert source_rows(rows, ranks=4).tolist() == [
        [[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1]],
        [[0, 2, 0], [0, 2, 0], [0, 2, 0], [0, 2, 0]],
    ]


def test_rows_that_do_not_divide_over_the_ranks():
    with pytest.raises(ValueError, match="7 rows do not divide over 2 ranks"):
        source_rows(np.array([3, 4]), ranks=2)


@given(
    ranks=st.integers(1, 16),
    tokens_per_rank=st.integers(0, 5000),
    sigma=st.floats(0, 5),
    seed=st.integers(0, 9),
    top_k=st.integers(1, 12),
)
def test_source_rows_keep_both_margins_and_the_even_split(ranks, tokens_per_rank, sigma, seed, top_k):
    made = synthesise(1, 12, top_k, sigma, np.random.default_rng(seed))
    rows = rows_per_expert(made, 0, ranks * tokens_per_rank, top_k)
    sent = source_rows(rows, ranks)
    assert (sent.sum(axis=0) == rows).all()
    assert (sent.sum(axis=1) == tokens_per_rank * top_k).all()
    assert (np.abs(sent - rows / ranks) < 1).all()
    assert sent.max(initial=0) <= tokens_per_rank
    to_destination = sent.reshape(ranks, 3, 4).sum(axis=2)
    assert (np.abs(to_destination - rows.reshape(3, 4).sum(axis=1) / ranks) < 1).all()


@pytest.mark.benchmark(group="routing")
def test_rows_of_a_trillion_scale_model(benchmark):
    made = synthesise(92, 896, 16, 0.8, np.random.default_rng(0))

    def split():
        rows = np.array([rows_per_expert(made, layer, 64 * 4096, 16) for layer in range(92)])
        return source_rows(rows, 64)

    assert benchmark(split).shape == (92, 64, 896)

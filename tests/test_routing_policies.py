from dataclasses import replace

import numpy as np
import pytest

from simulator.routing import (
    Outcome,
    RoutingError,
    RoutingTable,
    Setting,
    apply_policy,
    describe,
    policy_names,
    read_table,
)
from simulator.routing.policies.data_sampling import lightest_bins
from simulator.routing.policies.micro_batch_scheduling import _cut
from simulator.routing.policies.node_limited import limit_nodes
from simulator.routing.tokens import draw_tokens
from simulator.shipped import shipped

NAMES = [
    "auxiliary_loss",
    "bias",
    "capacity_factor",
    "contiguous",
    "data_sampling",
    "eplb",
    "micro_batch_scheduling",
    "node_limited",
    "router_noise",
]
LENGTHS = np.random.default_rng(1).integers(500, 4000, 64)
SETTING = Setting(16, 8, 512, micro_batches=2, sequence_tokens=LENGTHS)


def olmoe(domain: str) -> RoutingTable:
    return read_table(shipped("scenarios", "traces", f"olmoe-{domain}.json"))


def skew(name: str, planned: str = "github", replayed: str = "github", **options: object) -> Outcome:
    return apply_policy(name, olmoe(planned), olmoe(replayed), SETTING, **options)


def test_policies_are_the_files_of_their_folder():
    assert policy_names() == NAMES
    assert describe("eplb").startswith("Copies of hot experts")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_computed_once_or_dropped(name):
    outcome = skew(name)
    layers = outcome.rows.sum(axis=(0, 2, 3)) + (outcome.dropped_rows if outcome.dropped_rows.size else 0)
    assert layers.tolist() == [int(LENGTHS.sum()) * 8] * 3
    assert outcome.source_tokens.sum() == LENGTHS.sum()
    assert outcome.rows.shape[:3] == (2, 3, 16)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_outcome(name):
    assert skew(name).rows.tobytes() == skew(name).rows.tobytes()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"data_sampling", "micro_batch_scheduling", "node_limited"}))
def test_a_balanced_table_stays_balanced(name):
    even = RoutingTable(np.ones((2, 64)), "even")
    options = {"redundant_experts": 0} if name == "eplb" else {}
    assert apply_policy(name, even, even, Setting(16, 8, 512), **options).rank_max_over_mean == 1.0


def test_contiguous_is_what_the_table_says_itself():
    table = olmoe("github")
    load = table.rank_load(16)
    assert skew("contiguous").rank_max_over_mean == pytest.approx(
        float((load.max(axis=1) / load.mean(axis=1)).mean()), abs=1e-3
    )


def test_a_bias_that_was_learnt_elsewhere_helps_less():
    fresh, stale, none = skew("bias"), skew("bias", "wikipedia"), skew("contiguous")
    assert fresh.rank_max_over_mean < 1.01
    assert fresh.rank_max_over_mean < stale.rank_max_over_mean
    assert stale.rank_max_over_mean > 1.2
    assert none.rank_max_over_mean > 1.5


def test_full_strength_of_an_auxiliary_loss_is_even_and_none_changes_nothing():
    assert skew("auxiliary_loss", strength=1.0).rank_max_over_mean == pytest.approx(1, abs=1e-3)
    assert (skew("auxiliary_loss", strength=0.0).rows == skew("contiguous").rows).all()


def test_noise_as_wide_as_the_logits_takes_the_square_root_of_half():
    table = RoutingTable(np.array([[1.0, 4.0]]), "two")
    outcome = apply_policy("router_noise", table, table, Setting(2, 1, 100_000), ratio=1.0)
    first, second = outcome.rank_rows[0, 0]
    assert second / first == pytest.approx(4**0.5**0.5, rel=1e-3)


def test_capacity_by_hand():
    # 10 tokens pick one of 4 experts: 5, 3, 1, 1. Capacity ceil(1.2 * 10 / 4) = 3.
    table = RoutingTable(np.array([[5.0, 3.0, 1.0, 1.0]]), "t")
    outcome = apply_policy("capacity_factor", table, table, Setting(2, 1, 5), factor=1.2)
    assert outcome.rows.tolist() == [[[[3, 3], [1, 1]]]]
    assert (outcome.dropped_rows.tolist(), outcome.dropped_share) == ([2], 0.2)


def test_padded_experts_take_as_many_rows_from_every_rank():
    # 10 tokens on 2 ranks, as above. Each rank sends each expert ceil(1.2 * 5 / 4) = 2 rows: 5, 3, 1, 1 become 4 each.
    table = RoutingTable(np.array([[5.0, 3.0, 1.0, 1.0]]), "t")
    outcome = apply_policy("capacity_factor", table, table, Setting(2, 1, 5), factor=1.2, pad=True)
    assert outcome.padded
    assert outcome.rows.tolist() == [[[[4, 4], [4, 4]]]]
    assert (outcome.dropped_rows.tolist(), outcome.dropped_share, outcome.zero_rows) == ([1], 0.1, 7)


def test_node_limit_holds_for_every_token_and_keeps_picks_apart():
    rng = np.random.default_rng(0)
    popularity = rng.lognormal(size=64)
    picks = limit_nodes(draw_tokens(popularity, 500, 8, rng), popularity, nodes=8, most=2, rng=rng)
    assert max(len(set(row // 8)) for row in picks) == 2
    assert min(len(set(row)) for row in picks) == 8


def test_a_limit_that_does_not_bind_changes_nothing():
    rng = np.random.default_rng(0)
    picks = draw_tokens(np.ones(64), 100, 4, rng)
    assert np.sort(limit_nodes(picks, np.ones(64), 8, 8, rng)).tolist() == np.sort(picks).tolist()


def test_node_limited_reports_the_nodes_of_a_token():
    assert skew("node_limited", nodes=1).nodes_per_token == 1.0
    assert 1 < (skew("node_limited", nodes=2).nodes_per_token or 0) <= 2


def test_sequences_go_where_the_least_lies_of_what_they_bring():
    # Two bins, tokens and patches: the image goes first, the long text to the other bin, the short one to fewer tokens.
    amounts = np.array([[0.1, 0.9], [0.6, 0.1], [0.3, 0.0]])
    assert lightest_bins(amounts, 2).tolist() == [0, 1, 0]


def test_sampling_evens_tokens_and_patches():
    patches = np.where(np.arange(64) % 4 == 0, 4096, 0)
    setting = Setting(4, 8, 512, micro_batches=2, sequence_tokens=LENGTHS, image_patches=patches)
    table = olmoe("c4")
    dealt = apply_policy("contiguous", table, table, setting).source_tokens
    outcome = apply_policy("data_sampling", table, table, setting)
    assert outcome.source_tokens.max() / outcome.source_tokens.mean() < 1.05 < dealt.max() / dealt.mean()
    assert outcome.source_patches is not None
    assert (outcome.source_patches == 2 * 4096).all()


def test_cuts_make_the_heaviest_micro_batch_light_and_put_it_first():
    # One layer, one rank, weights 1 2 3 4 5: the best two runs are 1 2 3 and 4 5.
    assert _cut(np.arange(1.0, 6.0).reshape(5, 1, 1), 2) == [(3, 5), (0, 3)]


def test_bringing_alike_sequences_together_gives_experts_fewer_larger_groups():
    table = olmoe("github")
    tokens = np.full(8 * 8, 2048)
    setting = Setting(8, 8, 2048, micro_batches=8, sequence_tokens=tokens, domains=4, spread=0.93)
    apart, together = (
        apply_policy("micro_batch_scheduling", table, table, setting, together=together) for together in (False, True)
    )
    assert (together.rows**2).sum() > (apart.rows**2).sum()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("eplp", {}, "no policy 'eplp'; did you mean 'eplb'?"),
        ("eplb", {"redundant": 8}, "eplb.redundant: is not an option; did you mean 'redundant_experts'?"),
        ("eplb", {"redundant_experts": 3}, "slots 67 do not divide over ranks 16"),
        ("auxiliary_loss", {"strength": 2.0}, "strength is 2, expected 0 to 1"),
        ("bias", {"speed": -1.0}, "speed is -1"),
        ("router_noise", {"ratio": -1.0}, "ratio is -1, expected 0 or more"),
        ("capacity_factor", {"factor": 0.0}, "factor is 0, expected more than 0"),
        ("node_limited", {"nodes": 0}, "0 nodes of 32 experts do not hold 8 for a token"),
    ],
)
def test_what_a_policy_refuses(name, options, message):
    with pytest.raises(RoutingError, match=message.replace("?", r"\?")):
        skew(name, **options)


def test_a_plan_needs_the_shape_of_what_it_is_replayed_on():
    with pytest.raises(RoutingError, match="planned on"):
        apply_policy("eplb", RoutingTable(np.ones((3, 32)), "t"), olmoe("c4"), SETTING)


@pytest.mark.parametrize("name", ["data_sampling", "micro_batch_scheduling"])
def test_composing_micro_batches_needs_sequences(name):
    with pytest.raises(RoutingError, match="needs the tokens of each sequence"):
        apply_policy(name, olmoe("c4"), olmoe("c4"), Setting(16, 8, 512))


def test_sequences_that_route_in_their_own_way_make_micro_batches_unlike_and_sum_to_the_table():
    tokens = np.full(4 * 16, 2048)
    one = Setting(16, 8, 2048, micro_batches=4, sequence_tokens=tokens)
    alike, unlike = (
        apply_policy("contiguous", olmoe("c4"), olmoe("c4"), setting)
        for setting in (one, replace(one, domains=6, spread=0.93))
    )
    assert (alike.rows == alike.rows[:1]).all()
    assert (unlike.rows[0] != unlike.rows[1]).any()
    assert unlike.rows.sum(axis=0).ravel() == pytest.approx(alike.rows.sum(axis=0).ravel(), rel=0.02, abs=8)


def test_scheduling_leaves_every_rank_of_a_micro_batch_as_many_sequences():
    tokens = np.full(12 * 4, 1024)
    setting = Setting(4, 8, 3072, micro_batches=4, sequence_tokens=tokens, domains=6, spread=0.93)
    outcome = apply_policy("micro_batch_scheduling", olmoe("github"), olmoe("github"), setting)
    counts = [[len(rank) for rank in batch] for batch in outcome.lengths]
    assert all(len(set(batch)) == 1 for batch in counts)
    assert sum(batch[0] for batch in counts) == 12


def test_a_setting_lists_all_that_is_too_small():
    with pytest.raises(ValueError, match="ep is 0, expected at least 1; tokens is 0"):
        Setting(0, 8, 0)

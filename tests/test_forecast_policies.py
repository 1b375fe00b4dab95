import pytest
from small_jobs import DEVICE_BOUND, Small

from simulator.forecast.comparison import compare, variants
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.routing.error import RoutingError

SKEWED = ("parallel.ep=8", "routing.synthetic={sigma: 1.5}")


def test_a_plan_that_copies_hot_experts_levels_ranks_and_shortens_the_step(small: Small) -> None:
    # Long enough to be bound by the device and not by launches.
    long = (*SKEWED, "training.sequence_length=8192", *DEVICE_BOUND)
    plain = forecast(*small("mixture", *long)).summary
    planned = forecast(*small("mixture", *long, "routing.policy={name: eplb}")).summary
    assert plain["routing"]["slots_per_rank"] == 2
    assert planned["routing"]["slots_per_rank"] == 3
    assert planned["routing"]["rank_max_over_mean"] < 1.3 < plain["routing"]["rank_max_over_mean"]
    assert planned["step_time_s"]["p50"] < plain["step_time_s"]["p50"]


def test_copies_of_experts_take_memory(small: Small) -> None:
    # Four layers, one more slot of three matrices of 1024 x 512 elements; shared by 16 / 8 ranks: 16 bytes in all.
    plain = forecast(*small("mixture", "parallel.ep=8")).summary["memory"]["hbm"]["breakdown"]
    copied = forecast(*small("mixture", "parallel.ep=8", "routing.policy={name: eplb}")).summary["memory"]["hbm"]
    more = copied["breakdown"]["parameters"] - plain["parameters"]
    # Two experts a rank are cut in halves as they are; three are padded to four.
    assert more == 4 * 3 * 1024 * 512 * 1 * 4


def test_a_capacity_drops_rows_and_says_so(small: Small) -> None:
    capped = "routing.policy={name: capacity_factor, options: {factor: 1.0}}"
    routing = forecast(*small("mixture", *SKEWED, capped)).summary["routing"]
    assert 0.1 < routing["dropped_share"] < 0.9


def test_a_policy_that_does_not_exist_names_the_nearest(small: Small) -> None:
    with pytest.raises(RoutingError, match="eplb"):
        forecast(*small("mixture", "routing.policy={name: epbl}"))


def test_a_named_workload_is_replayed(small: Small) -> None:
    # Eight ranks of two experts. W5 gives nothing to the upper half; W7 heats a rank in step 3 alone.
    for asked, busiest in (
        ("routing.workload=W0_balanced", 1.0),
        ("routing.workload=W5_zero_expert_rank", 2.0),
        ("routing.workload=W7_burst", 1.0),
    ):
        routing = forecast(*small("mixture", "parallel.ep=8", asked)).summary["routing"]
        assert routing["rank_max_over_mean"] == pytest.approx(busiest, abs=0.01)
    hot = forecast(*small("mixture", "parallel.ep=8", "routing.workload=W7_burst", "routing.step=3")).summary
    # Two hot experts of sixteen take 0.8 of all picks: 8 x 0.8 times the mean.
    assert hot["routing"]["rank_max_over_mean"] == pytest.approx(6.4, abs=0.1)


@pytest.mark.parametrize("name", ["data_sampling", "micro_batch_scheduling"])
def test_a_policy_that_deals_sequences_needs_some(small: Small, name: str) -> None:
    with pytest.raises(Refused, match=r"allowed: training\.sequences beside it"):
        forecast(*small("mixture", f"routing.policy={{name: {name}}}"))


def test_variants_are_every_combination_in_order() -> None:
    assert variants(["a", "b"], ["parallel.ep=8,16", "training.loss=cut"]) == [
        (name, (f"parallel.ep={ep}", "training.loss=cut")) for name in ("a", "b") for ep in (8, 16)
    ]
    for text in ("parallel.ep", "=8", "parallel.ep=8,,16"):
        with pytest.raises(ValueError, match="path=value"):
            variants(["a"], [text])


def test_comparing_forecasts_each_variant() -> None:
    rows = compare(["llama3-8b-fsdp2-2xh200"], ["training.recompute=full,none"], ())["rows"]
    assert [row["change"] for row in rows] == ["training.recompute=full", "training.recompute=none"]
    assert rows[1]["step_time_s"]["p50"] < rows[0]["step_time_s"]["p50"]
    assert rows[1]["memory"]["hbm"]["peak_bytes"] > rows[0]["memory"]["hbm"]["peak_bytes"]

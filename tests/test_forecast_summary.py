import json
from typing import Any

import pytest
from small_jobs import DEVICE_BOUND, Small

from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

LONG = "training.sequence_length=8192"
"""Long enough for the host to run ahead of layers so small."""
SKEWED = ("parallel.ep=8", "routing.synthetic.sigma=1")


def summary(small: Small, kind: str, *overrides: str, fold: bool = True) -> dict[str, Any]:
    return forecast(*small(kind, *overrides), fold=fold).summary


def without_effort(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "engine"}


def test_the_same_scenario_gives_the_same_bytes(small: Small) -> None:
    def text() -> str:
        found = summary(small, "mixture", *SKEWED)
        del found["engine"]["wall_s"]
        return json.dumps(found)

    assert text() == text()


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("dense", ()),
        ("mixture", SKEWED),
        ("mixture", (*SKEWED, "parallel.dp_replicate=2", "parallel.dp_shard=8")),
        ("mixture", ("parallel.ep=2", "routing.synthetic.sigma=2", "training.recompute=full")),
    ],
)
def test_folded_and_apart_forecast_the_same(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    folded, apart = (summary(small, kind, *overrides, fold=fold) for fold in (True, False))
    assert folded["step_time_s"]["p50"] == apart["step_time_s"]["p50"]
    assert folded["time"] == pytest.approx(apart["time"], rel=1e-9)
    # One row for each class of ranks, and classes are what folding changes.
    for found in (folded, apart):
        del found["memory"]["hbm"]["peaks"]
    assert folded["memory"] == apart["memory"]
    assert folded["traffic"] == apart["traffic"]
    assert folded["engine"]["classes"] < apart["engine"]["classes"] == 16


@pytest.mark.parametrize("sequences", [16, 64, 512])
def test_the_parts_of_time_add_up_to_the_step(small: Small, sequences: int) -> None:
    found = summary(small, "mixture", *SKEWED, f"training.global_batch_sequences={sequences}")
    assert sum(found["time"].values()) == pytest.approx(found["step_time_s"]["p50"], rel=1e-9)
    # Kernels are compute; what they do not fill of the compute stream is named otherwise.
    assert sum(found["compute"].values()) == pytest.approx(found["time"]["compute_s"], rel=1e-9)
    assert sum(found["provenance"].values()) == pytest.approx(1.0, rel=1e-9)


def test_rates_and_prices_by_hand(small: Small) -> None:
    found = summary(small, "dense", "training.global_batch_sequences=64", "usd_per_accelerator_hour=2")
    step_s, tokens = found["step_time_s"]["p50"], 64 * 2048
    assert found["tokens_per_s"] == pytest.approx(tokens / step_s)
    assert found["tokens_per_s_per_accelerator"] == pytest.approx(tokens / step_s / 16)
    assert found["cost"]["usd_per_step"] == pytest.approx(2 * 16 * step_s / 3600)
    assert found["cost"]["usd_per_1m_tokens"] == pytest.approx(2 * 16 * step_s / 3600 / tokens * 1e6)
    # Matrices of 1024 x 1024 (4), 1024 x 4096 (3) in 4 layers and a head of 2048 x 1024: 6 FLOPs a weight and token.
    # Attention: 2 matrix products of 4 x 1024 FLOPs for each of 2049 / 2 keys; three times with its backward pass.
    weights = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 2048 * 1024
    needed = tokens / 16 * (6 * weights + 4 * 3 * 2 * 2 * 1024 * 2049 / 2)
    assert found["model_flops_utilization"] == pytest.approx(needed / (step_s * 989e12), rel=0.01)


def test_a_host_that_runs_ahead_gathers_ahead_by_itself(small: Small) -> None:
    ahead, late = (summary(small, "dense", LONG, f"training.fsdp.prefetch={layers}") for layers in (1, 0))
    assert late["step_time_s"]["p50"] == pytest.approx(ahead["step_time_s"]["p50"], rel=0.02)


def test_recomputation_trades_time_for_memory(small: Small) -> None:
    kept, again = (summary(small, "dense", f"training.recompute={what}") for what in ("none", "full"))
    assert again["memory"]["hbm"]["peak_bytes"] < kept["memory"]["hbm"]["peak_bytes"]
    assert again["time"]["compute_s"] > kept["time"]["compute_s"]
    assert again["model_flops_utilization"] < kept["model_flops_utilization"]


def test_skewed_routing_costs_time_and_says_so(small: Small) -> None:
    even, skewed = (
        summary(small, "mixture", "parallel.ep=8", *DEVICE_BOUND, f"routing.synthetic.sigma={s}") for s in (0, 1.5)
    )
    assert even["routing"]["rank_max_over_mean"] == 1.0
    assert skewed["routing"]["rank_max_over_mean"] > 1.3
    assert skewed["step_time_s"]["p50"] > even["step_time_s"]["p50"]
    assert skewed["time"]["imbalance_s"] > even["time"]["imbalance_s"] == 0


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_replicas_add_an_all_reduce_and_no_classes(small: Small, replicas: int) -> None:
    found = summary(
        small,
        "mixture",
        *SKEWED,
        f"cluster.accelerators={16 * replicas}",
        f"parallel.dp_replicate={replicas}",
        f"training.global_batch_sequences={16 * replicas}",
    )
    assert (found["engine"]["classes"], found["engine"]["ranks"]) == (8, 16 * replicas)
    assert ("all_reduce_bytes_per_micro_batch" in found["traffic"]) == (replicas > 1)


def test_progress_tells_its_stages_in_order(small: Small) -> None:
    heard: list[str] = []
    forecast(*small("dense"), progress=lambda stage, _: heard.append(stage))
    assert list(dict.fromkeys(heard)) == ["reading", "lowering", "accounting"]


def test_the_timeline_keeps_the_median_the_hottest_and_the_coldest_rank(small: Small) -> None:
    found = forecast(*small("mixture", *SKEWED))
    assert [rank.label for rank in found.timeline.ranks] == ["median", "hottest", "coldest"]
    assert found.timeline.start_ns.shape == (len(found.timeline.name), 3)
    assert (found.timeline.end_ns >= found.timeline.start_ns).all()
    assert found.timeline.end_ns.max() / 1e9 == found.summary["step_time_s"]["p50"]
    assert [rank.label for rank in forecast(*small("dense")).timeline.ranks] == ["every rank alike"]


def test_full_fine_tuning_of_the_main_job_does_not_fit() -> None:
    scenario, folder = read_scenario("kimi-k3-full-finetune-128xh200", ["training.global_batch_sequences=128"])
    found = forecast(scenario, folder).summary
    assert (found["fits"], found["verdict"]) == (False, "does not fit")
    assert found["memory"]["hbm"]["peak_bytes"] > 347e9

"""A whole run of a dense model of four layers on 16 ranks, and Llama 3's 54 days."""

import pytest
from small_jobs import Small

from simulator.documents import InvalidDocument
from simulator.engine.long_run import LongRun
from simulator.forecast.campaign import COURSES, _courses
from simulator.forecast.checkpointing import busy_ports
from simulator.forecast.forecast import forecast
from simulator.hardware.library import build_cluster, load_failures
from simulator.shipped import shipped

PARAMETERS = 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024
RUN = ("campaign.tokens=1e12", "campaign.storage_bandwidth=1 GB/s")
HERE = shipped("scenarios")


def told(small: Small, *overrides: str):
    return forecast(*small("dense", *RUN, *overrides)).summary["campaign"]


def test_a_checkpoint_holds_master_weights_and_two_moments(small: Small) -> None:
    found = told(small)
    assert found["checkpoint"]["bytes"] == pytest.approx(12 * PARAMETERS, rel=0.001)
    assert found["checkpoint"]["safe_after_s"] >= 12 * PARAMETERS / 1e9


def test_steps_are_the_tokens_over_those_of_one(small: Small) -> None:
    scenario, _ = small("dense", *RUN)
    each = scenario.training.global_batch_sequences * scenario.training.sequence_length
    assert told(small)["steps"] == -(-(10**12) // each)


def test_the_parts_add_up_to_the_wall_clock(small: Small) -> None:
    found = told(small)
    assert found["goodput"] == pytest.approx(found["ideal_s"] / (found["ideal_s"] + sum(found["lost"].values())))
    assert found["wall_s"]["p10"] < found["wall_s"]["p50"] < found["wall_s"]["p90"]


def test_ports_lose_what_a_checkpoint_sends_and_at_most_half() -> None:
    # Ports of 50 GB/s: 8 GB/s of payload are 8 / share of them.
    cluster = build_cluster("hgx-h100", "rail-fat-tree-400g", 16, HERE)
    inner, port = cluster.levels
    share = 8e9 / (port.bandwidth_bytes_per_s * port.share)
    fewer, most = busy_ports(cluster, 8e9), busy_ports(cluster, 1e12)
    assert fewer.levels[0] == inner
    assert fewer.levels[1].bandwidth_bytes_per_s == pytest.approx((1 - share) * port.bandwidth_bytes_per_s)
    assert most.levels[1].bandwidth_bytes_per_s == port.bandwidth_bytes_per_s / 2


def test_steps_slow_down_while_a_checkpoint_is_stored_beside_them(small: Small) -> None:
    slow, fast = (told(small, f"campaign.storage_bandwidth={rate} GB/s")["checkpoint"] for rate in (100, 400))
    assert fast["pace_meanwhile"] < slow["pace_meanwhile"] < 1
    for found in (slow, fast):
        transfer_s = found["safe_after_s"] - found["stall_s"]
        assert found["slowed_s"] == pytest.approx(transfer_s * (1 - found["pace_meanwhile"]))
    blocking = told(small, "campaign.checkpoint=blocking")["checkpoint"]
    assert (blocking["pace_meanwhile"], blocking["slowed_s"]) == (1, 0)


def test_a_checkpoint_in_the_background_takes_half_of_the_ports_at_most(small: Small) -> None:
    both = [told(small, "campaign.storage_bandwidth=100 TB/s", f"campaign.checkpoint={how}")["checkpoint"]
            for how in ("background", "blocking")]  # fmt: skip
    beside_s, alone_s = (one["safe_after_s"] for one in both)
    copy_s = both[0]["stall_s"]
    assert beside_s - copy_s == pytest.approx(2 * (alone_s - copy_s))


def test_blocking_checkpoints_stall_for_all_of_their_way(small: Small) -> None:
    found = told(small, "campaign.checkpoint=blocking")["checkpoint"]
    assert found["stall_s"] == found["safe_after_s"]


def test_no_interval_is_better_than_the_one_found(small: Small) -> None:
    best = told(small)
    for factor in (0.3, 3):
        other = told(small, f"campaign.checkpoint_interval={factor * best['checkpoint']['interval_s']}")
        assert other["goodput"] <= best["goodput"]


def test_spare_nodes_are_paid_for_and_shorten_the_run(small: Small) -> None:
    few, more = told(small), told(small, "campaign.spare_nodes=1")
    assert more["accelerators"] == few["accelerators"] + 8
    assert more["lost"]["waiting_s"] < few["lost"]["waiting_s"]


def test_a_missed_deadline_and_a_missed_budget_are_told(small: Small) -> None:
    assert told(small, "campaign.within=1 h", "campaign.budget_usd=1")["misses"] == ["deadline", "budget"]
    assert told(small, "campaign.within=100000 d", "campaign.budget_usd=1e12")["misses"] == []


def test_an_unknown_failure_sheet_is_refused(small: Small) -> None:
    with pytest.raises((FileNotFoundError, InvalidDocument), match="llama3-16k-h100"):
        told(small, "campaign.failures=nobody")


def test_llama_3_had_more_than_nine_tenths_of_its_time_effective() -> None:
    # The report (arXiv 2407.21783, section 3.3): 54 days on 16,384 H100, 419 interruptions, over 90 % effective.
    cluster = build_cluster("hgx-h100", "rail-fat-tree-400g", 16384, HERE)
    sheet = load_failures("llama3-16k-h100", HERE)
    # 405 B parameters with 12 bytes each at 2 TB/s, the rate that the report gives its storage.
    stored_s = 405e9 * 12 / 2e12
    run = LongRun(
        work_s=54 * 86400, interval_s=900, stall_s=1, safe_s=1 + stored_s,
        restart_s=sheet.detection.value + sheet.restart.value + stored_s,
        interruptions_per_s=sheet.interruptions_per_s(cluster), broken_nodes_per_s=sheet.broken_nodes_per_s(cluster),
        repair_s=sheet.repair.value, spare_nodes=50,
    )  # fmt: skip
    courses = _courses(run, 0)
    goodput = sum(course.work_s for course in courses) / sum(course.wall_s for course in courses)
    assert 0.90 < goodput < 0.95
    assert sum(course.failures for course in courses) / COURSES == pytest.approx(419 / goodput, rel=0.05)

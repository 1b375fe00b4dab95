"""What collectives attain: curves of timings, and the formula for links without one."""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.collective import Formula, Run, Timed, Timings
from simulator.hardware.library import load_node

MIB = 2**20


def figure(value):
    return {"value": value, "source": "a test", "grade": "assumed"}


def run(ranks, *points):
    return {"ranks": ranks, "algorithm": "ring", "source": "a test", "points": points}


def timed(operation, *runs, links=100e9):
    return Timed(operation=operation, bandwidth=100e9, links=links, scaled=False, runs=runs)


def test_between_two_points_time_has_a_latency_and_a_rate():
    one = Run(**run(8, (1000, 10e-6), (3000, 14e-6)))
    assert one.seconds([0, 1000, 2000, 3000]) == pytest.approx([10e-6, 10e-6, 12e-6, 14e-6])


def test_beyond_the_last_point_the_last_stretch_goes_on():
    one = Run(**run(8, (1000, 10e-6), (3000, 14e-6)))
    assert one.seconds(5000) == pytest.approx(18e-6)
    noisy = Run(**run(8, (1000, 10e-6), (2000, 8e-6)))
    assert noisy.seconds(4000) == pytest.approx(8e-6 + 2000 * 4e-9)


def seconds(ours, ranks, size, links=100e9):
    wire = (2 if ours.operation == "all_reduce" else 1) * (ranks - 1) / ranks
    return float(ours.latency_s(ranks, size)) + wire * size / (links * float(ours.share_at(ranks, 8, size)))


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce"])
def test_latency_and_bytes_over_rate_give_the_measured_points_back(operation):
    points = (1e3, 10e-6), (1e6, 40e-6), (1e9, 10e-3)
    for size, measured in points:
        assert seconds(timed(operation, run(4, *points)), 4, size) == pytest.approx(measured)


def test_all_but_the_shortest_messages_time_keeps_links_busy():
    ours = timed("all_gather", run(2, (1e3, 10e-6), (1e6, 40e-6), (1e9, 10e-3)))
    assert float(ours.latency_s(2, 1e6)) == pytest.approx(10e-6)
    assert float(ours.share_at(2, 8, 1e6)) == pytest.approx(0.5e6 / 30e-6 / 100e9)


def test_latency_is_never_negative_and_nothing_for_a_lone_rank_or_an_empty_message():
    ours = timed("all_gather", run(2, (1e3, 10e-6), (1e6, 11e-6), (1e9, 20e-3)))
    assert (ours.latency_s(2, np.geomspace(1, 1e12, 50)) >= 0).all()
    assert ours.latency_s([1, 2], [1e6, 0]).tolist() == [0, 0]


def test_groups_between_measured_sizes_lie_between_them():
    ours = timed("all_gather", run(2, (1e3, 10e-6), (1e9, 20e-3)), run(4, (1e3, 20e-6), (1e9, 20e-3)))
    # 2 ranks move half of the buffer, 4 three quarters.
    assert ours.share_at([2, 4, 8], 8, 1e12) == pytest.approx([0.25, 0.375, 0.375], rel=2e-3)
    assert ours.share_at(2 * 2**0.5, 8, 1e12) == pytest.approx(0.3125, rel=2e-3)
    assert float(ours.latency_s(3, 1e3)) == pytest.approx((10e-6 + 20e-6) / 2, rel=2e-3)


def test_links_of_another_rate_keep_the_latency_and_scale_the_bytes_at_the_best_rate():
    points = (1e3, 10e-6), (1e6, 40e-6), (1e9, 10e-3)
    timings = Timings(part="a", bandwidth=100e9, collectives={"all_gather": [run(2, *points)]})
    same, half = (timings.for_links(part, rate)["all_gather"] for part, rate in (("a", 100e9), ("b", 50e9)))
    assert (same.grade, half.grade) == ("measured", "scaled")
    best = (10e-3 - 40e-6) / (1e9 - 1e6)
    for size, measured in points:
        assert seconds(half, 2, size, 50e9) == pytest.approx(measured + size * best)


def test_points_that_do_not_rise_are_refused():
    with pytest.raises(ValueError, match="found 3000 before 1000"):
        Run(**run(8, (3000, 10e-6), (1000, 14e-6)))


def test_a_formula_waits_for_every_step_of_the_ring_and_once_for_bulk():
    ours = Formula(share=figure(0.7), start=figure(4e-6), step=figure(1e-6), bulk=figure(20e-6))
    assert ours.latency_s([1, 2, 8], 1) == pytest.approx([0, 5e-6, 11e-6], rel=1e-3)
    assert ours.latency_s(8, 0) == 0
    # Of 8 ranks, half of the further wait is met at 4 MiB.
    assert ours.latency_s(8, [4 * MIB, 1e15]) == pytest.approx([21e-6, 31e-6], rel=1e-3)


def test_a_formula_lets_small_groups_keep_fewer_channels_busy():
    ours = Formula(share=figure(0.8), few_ranks={2: figure(0.5)}, start=figure(4e-6), step=figure(1e-6))
    assert ours.share_at([2, 4, 8, 16], 8, 1e9) == pytest.approx([0.5, 0.65, 0.8, 0.8])
    assert ours.best_share == 0.8


def test_a_node_puts_what_it_knows_itself_before_the_timings():
    collectives = load_node("hgx-h800", Path()).scale_up.collectives
    assert isinstance(collectives["all_to_all"], Formula)
    assert isinstance(collectives["all_gather"], Timed)
    assert collectives["all_gather"].grade == "scaled"


def test_timings_that_are_not_there_are_named(tmp_path):
    text = (Path(__file__).parents[1] / "hardware_profiles" / "nodes" / "hgx-h200.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("curves: h200-sxm", "curves: h2000"))
    with pytest.raises(FileNotFoundError, match=r"no collectives.yaml of 'h2000'; there are timings of a100-80g-sxm"):
        load_node("mine", tmp_path)

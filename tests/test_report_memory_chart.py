import numpy as np
import pytest
from report_sample import memory, step, summary

from simulator.forecast.timeline import MemoryCurve, TellingRank
from simulator.report.memory_chart import memory_chart, peak_curves

RANK = TellingRank(5, "hottest")


def curve(tier="hbm", capacity_bytes=141e9, rank=RANK, workspace=(0.0, 50e9, 10e9)):
    held = {"parameters": np.full(3, 60e9), "workspace": np.array(workspace)}
    return MemoryCurve(rank, tier, capacity_bytes, np.array([0, 10_000_000, 20_000_000]), held)


def chart(*curves):
    timeline = step(layers=2)
    return memory_chart(curves, timeline, summary(timeline))


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_the_title_names_peak_capacity_and_room():
    assert chart(curve()).texts[0].get_text() == "HBM peak 110 GB of 141 GB: 31 GB free"
    assert chart(curve(capacity_bytes=80e9)).texts[0].get_text() == "HBM peak 110 GB of 80 GB: 30 GB too much"


def test_the_peak_is_marked_at_its_moment_with_what_ran_and_what_fills_it():
    axes = chart(curve()).axes[0]
    marker = axes.lines[-1]
    assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (0.01, 110.0)
    assert "peak 110 GB at 10 ms, in forward (loss)\nlargest part parameters: 60 GB" in words(axes)
    assert "31 GB free" in words(axes)


def test_a_rank_without_tasks_borrows_the_place_of_the_step():
    axes = chart(curve(rank=TellingRank(0, "highest peak"))).axes[0]
    assert any("peak 110 GB at 10 ms, around forward\n" in text for text in words(axes))


def test_areas_are_steps_that_stack_up_to_the_total():
    figure = chart(curve())
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in figure.axes[0].collections]
    assert tops == [60.0, 110.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["parameters", "workspace"]


def test_the_capacity_is_a_line_in_gigabytes():
    axes = chart(curve()).axes[0]
    line = next(line for line in axes.lines if line.get_label() == "capacity")
    assert set(line.get_ydata()) == {141.0}
    assert "capacity 141 GB" in words(axes)


def test_a_panel_for_each_tier_that_holds_something_of_its_fullest_rank():
    full, fuller = curve(), curve(rank=TellingRank(1, "coldest"), workspace=(0.0, 51e9, 0.0))
    disk = curve("nvme", 3.84e12)
    empty = MemoryCurve(RANK, "ddr", 2e12, np.zeros(0, np.int64), {})
    assert peak_curves([full, fuller, disk, empty]) == [fuller, disk]
    assert len(chart(full, fuller, disk, empty).axes) == 2


def test_a_nearly_empty_tier_fills_its_panel_and_still_names_its_capacity():
    axes = chart(curve("nvme", 10e12)).axes[0]
    assert axes.get_ylim()[1] < 200
    assert "capacity 10 TB" in words(axes)


def test_nothing_in_memory_is_said():
    assert chart().texts[0].get_text() == "No memory in use"


def test_a_long_curve_is_thinned_and_says_so_and_keeps_the_peak():
    timeline = step(layers=40, micro_batches=4)
    long = memory(timeline)[:3]
    axes = memory_chart(long, timeline, summary(timeline)).axes[0]
    assert "at its fullest" in axes.get_title(loc="left")
    total = sum(long[1].bytes_by_kind.values())
    assert axes.lines[-1].get_ydata()[0] == total.max() / 1e9
    top = max(area.get_paths()[0].vertices[:, 1].max() for area in axes.collections)
    assert top == pytest.approx(total.max() / 1e9)

import io
import struct

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from report_sample import step, summary

from simulator.report.closeup import closeups
from simulator.report.lanes import BAR_HEIGHT, busy_shares, groups_of, lanes_of, phase_runs
from simulator.report.paper import write_png
from simulator.report.timeline_chart import timeline_chart

LANES = ("compute", "all_to_all", "fsdp_gather", "fsdp_reduce")


def rectangles(axes):
    """(left, right, lower edge) of every bar, in seconds."""
    found = []
    for collection in axes.collections:
        if isinstance(collection, PolyCollection):
            for path in collection.get_paths():
                box = path.get_extents()
                found.append((box.x0, box.x1, box.y0))
    return sorted(found)


def test_bars_of_the_whole_step_span_exactly_the_tasks():
    timeline = step(layers=2)
    whole = timeline_chart(timeline, summary(timeline)).axes[0]
    strip_above = -0.2
    drawn = [bar for bar in rectangles(whole) if bar[2] > strip_above]
    expected = sorted(
        (timeline.start_ns[i, lane.column] / 1e9, timeline.end_ns[i, lane.column] / 1e9, lane.y)
        for lane in lanes_of(timeline)
        for i in lane.tasks
    )
    assert len(drawn) == 3 * len(timeline.name)
    np.testing.assert_allclose(drawn, expected, rtol=0, atol=1e-12)
    assert whole.get_xlim() == (0.0, timeline.end_ns.max() / 1e9)


def test_each_rank_has_its_lanes_and_its_name():
    timeline = step(layers=2)
    axes = timeline_chart(timeline, summary(timeline)).axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["compute", "expert all-to-all", "FSDP gather", "FSDP reduce"] * 3
    written = {text.get_text() for text in axes.texts}
    assert {"median\nrank 64", "hottest\nrank 5", "coldest\nrank 17"} <= written


def test_the_title_is_the_answer_and_the_legend_names_what_occurs():
    timeline = step(layers=2)
    figure = timeline_chart(timeline, summary(timeline))
    assert figure.texts[0].get_text() == "Step 27.2 ms: 63 % exposed expert all-to-all"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "matrix multiply",
        "expert matrix multiply",
        "attention",
        "element-wise",
        "loss, optimizer",
        "expert all-to-all",
        "all-gather",
        "reduce-scatter, all-reduce",
    ]


def test_close_ups_show_two_middle_layers_of_the_middle_micro_batch_of_each_pass():
    timeline = step(layers=9, micro_batches=5)
    forward, backward = closeups(timeline)
    assert forward.title == "Forward, layers 4 and 5, micro-batch 2"
    assert backward.title == "Backward, layers 4 and 5, micro-batch 2"
    first = [
        i
        for i, name in enumerate(timeline.name)
        if name == "norm" and timeline.layer[i] == 4 and timeline.phase[i] == "forward"
    ][2]
    assert forward.start_ns == timeline.start_ns[first].min()
    figure = timeline_chart(timeline, summary(timeline))
    assert [axes.get_xlim() for axes in figure.axes[1:]] == [
        pytest.approx((window.start_ns / 1e9, window.end_ns / 1e9), abs=1e-12) for window in (forward, backward)
    ]


def test_a_crowded_lane_is_drawn_as_shares_and_says_so():
    timeline = step(layers=40, micro_batches=4)
    axes = timeline_chart(timeline, summary(timeline)).axes[0]
    bars = [bar for bar in rectangles(axes) if bar[2] > -0.2]
    assert len(bars) < len(timeline.name)
    assert any(text.get_text().startswith("filled height: share of each") for text in axes.texts)


def test_shares_keep_all_the_time_of_every_task():
    timeline = step(layers=40, micro_batches=4)
    groups, group = groups_of(timeline)
    edges_ns = np.linspace(0, timeline.end_ns.max(), 451)
    for lane in lanes_of(timeline):
        shares = busy_shares(timeline, lane, group, len(groups), edges_ns)
        spent = (timeline.end_ns - timeline.start_ns)[lane.tasks, lane.column].sum()
        assert (shares * np.diff(edges_ns)).sum() == pytest.approx(spent, rel=1e-9)
        assert shares.sum(axis=0).max() <= 1 + 1e-9


def test_lanes_of_a_rank_are_stacked_and_ranks_stand_apart():
    lanes = lanes_of(step(layers=2))
    assert [lane.stream for lane in lanes] == list(LANES) * 3
    heights = [lane.y for lane in lanes]
    assert heights[:4] == [0, 1, 2, 3]
    assert heights[4] - (heights[3] + BAR_HEIGHT) > 0.5


def test_phases_are_told_by_pass_and_micro_batch():
    timeline = step(layers=2, micro_batches=2)
    compute = lanes_of(timeline)[0]
    assert [run[:2] for run in phase_runs(timeline, compute)] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
        ("optimizer", -1),
    ]


def test_what_was_extrapolated_is_told():
    timeline = step(layers=2)
    told = summary(timeline)
    told["engine"] |= {"micro_batches": 64, "micro_batches_simulated": 4}
    written = [text.get_text() for text in timeline_chart(timeline, told).axes[0].texts]
    assert "4 of 64 micro-batches, the others repeat the last" in written
    assert "Whole step" not in written


def test_the_png_is_a_slide_of_2000_by_1125_pixels():
    timeline = step(layers=2)
    file = io.BytesIO()
    write_png(timeline_chart(timeline, summary(timeline)), file)
    picture = file.getvalue()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert abs(width - 2000) <= 1
    assert height == 1125
    assert b"matplotlib" not in picture

from io import StringIO

import pytest
from rich.console import Console

from simulator.report.comparison_chart import comparison_chart
from simulator.report.comparison_table import comparison_table


def row(change, step_s, *, fits=True, name="job", skew=1.0):
    return {
        "name": name,
        "change": change,
        "fits": fits,
        "verdict": "fits" if fits else "does not fit",
        "step_time_s": {"p50": step_s},
        "time": {"compute_s": step_s / 4, "exposed_all_to_all_s": step_s / 2, "imbalance_s": step_s / 4},
        "tokens_per_s_per_accelerator": 1200 / step_s,
        "cost": {"usd_per_1m_tokens": None},
        "memory": {"hbm": {"peak_bytes": 5e10, "capacity_bytes": 8e10}},
        "routing": {"rank_max_over_mean": skew},
    }


ROWS = [
    row("routing.trace=/a/c4.json routing.policy.name=contiguous", 12.0, skew=1.5),
    row("routing.trace=/a/c4.json routing.policy.name=eplb", 6.0),
    row("routing.trace=/a/arxiv.json routing.policy.name=eplb", 3.0, fits=False),
]


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_title_names_the_fastest_that_fits():
    title = comparison_chart({"rows": ROWS}).texts[0].get_text()
    assert title == "c4 eplb: 6 s a step, 2.0 x faster than the slowest"
    assert comparison_chart({"rows": [ROWS[2]]}).texts[0].get_text() == "None of these fits"


def test_bars_end_at_the_step_and_are_as_long_as_its_parts():
    bars = comparison_chart({"rows": ROWS}).axes[0].patches
    assert [bar.get_width() for bar in bars[:3]] == [3, 6, 3]
    assert [bars[at].get_x() + bars[at].get_width() for at in (2, 5, 8)] == [12, 6, 3]


def test_variants_stand_under_their_first_change():
    chart = comparison_chart({"rows": ROWS})
    assert [label.get_text() for label in chart.axes[0].get_yticklabels()] == ["contiguous", "eplb", "eplb"]
    assert [text for text in texts(chart) if text in ("c4", "arxiv")] == ["c4", "arxiv"]
    first, second, third = (bar.get_y() for bar in chart.axes[1].patches)
    assert second - first == pytest.approx(1)
    assert third - second == pytest.approx(2.2)


def test_scenarios_group_where_there_are_several():
    chart = comparison_chart({"rows": [row("parallel.ep=8", 2.0, name=name) for name in ("one", "two")]})
    assert [text for text in texts(chart) if text in ("one", "two")] == ["one", "two"]
    assert [label.get_text() for label in chart.axes[0].get_yticklabels()] == ["8", "8"]


def test_the_table_has_a_row_a_variant_and_says_what_is_lost():
    page = StringIO()
    Console(file=page, width=200).print(comparison_table({"rows": ROWS}))
    lines = page.getvalue().splitlines()
    assert len(lines) == 4
    first, second, third = (line.split() for line in lines[1:])
    assert first[:5] == ["c4.json", "contiguous", "fits", "12", "s"]
    assert first[-4:] == ["50%", "exposed", "expert", "all-to-all"]
    assert "-50.0%" in second
    assert "1.50" in first
    assert third[2:5] == ["does", "not", "fit"]


def test_scenarios_alone_name_their_bars_and_many_are_counted_beside_the_title():
    chart = comparison_chart({"rows": [row("", 2.0, name=name) for name in ("one", "two", "three")]})
    assert [label.get_text() for label in chart.axes[0].get_yticklabels()] == ["one", "two", "three"]
    assert "3 scenarios" in [text.get_text() for text in chart.texts]
    assert not {"one", "two", "three"} & set(texts(chart))

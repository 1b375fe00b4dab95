from typing import Any

import pytest

from simulator.report.series_chart import series, series_chart


def row(change: str, step_s: float, moved_s: float = 0.0) -> dict[str, Any]:
    return {
        "name": "job",
        "change": change,
        "step_time_s": {"p50": step_s},
        "routing": {"rank_max_over_mean": 1.5, "rebalance_s": moved_s},
        "memory": {"hbm": {"peak_bytes": 80e9}},
    }


RESULT = {
    "rows": [
        row(f"{policy} routing.step={step}", 10 + step, moved_s=2.0 * (policy == "policy=b" and step == 2))
        for policy in ("policy=a", "policy=b")
        for step in (0, 1, 2)
    ]
}


def test_steps_are_told_from_what_else_differs():
    lines = series(RESULT)
    assert list(lines) == ["policy=a", "policy=b"]
    assert [step for step, _ in lines["policy=b"]] == [0, 1, 2]


@pytest.mark.parametrize("rows", [RESULT["rows"][:2], [row("parallel.ep=8", 1.0)] * 3])
def test_two_steps_or_other_changes_are_no_series(rows):
    assert series({"rows": rows}) == {}


def test_a_new_plan_adds_what_it_moves():
    axes = series_chart(series(RESULT)).axes
    assert [line.get_ydata().tolist() for line in axes[0].lines] == [[10, 11, 12], [10, 11, 14]]
    assert [line.get_ydata().tolist() for line in axes[2].lines] == [[80.0] * 3] * 2


def test_the_title_names_the_change_that_is_fastest():
    rows = [row(f"routing.policy.replan_every={n} routing.step={step}", n) for n in (8, 4) for step in (0, 1, 2)]
    texts = [text.get_text() for text in series_chart(series({"rows": rows})).texts]
    assert any(text.startswith("replan_every 4: 4") for text in texts)

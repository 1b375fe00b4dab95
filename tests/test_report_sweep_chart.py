import pytest

from simulator.report.sweep_chart import sweep_chart


def case(loss, recompute, step_s, peak_gb, verdict="fits", pareto=False, tokens=1e6):
    settings = {"training.loss": loss, "training.recompute": recompute}
    figures = {"step_time_s": step_s, "tokens_per_s": tokens / step_s, "peak_bytes": peak_gb * 1e9}
    return {"settings": settings, "verdict": verdict, "capacity_bytes": 80e9, "pareto": pareto, **figures}


FAST, SMALL = case("plain", "none", 5.0, 70, pareto=True), case("cut", "full", 6.0, 40, pareto=True)
SLOW, LARGE = case("cut", "none", 7.0, 75), case("plain", "none", 4.0, 90, "does not fit")
OVER = {"training.loss": ["plain", "cut"], "training.recompute": ["none", "full"]}


def drawn(*cases):
    failed = {"step_time_s": None, "settings": {}, "verdict": "failed", "pareto": False}
    return sweep_chart({"scenario": "x", "over": OVER, "cases": [*cases, failed]})


def test_the_front_is_numbered_by_time_and_told_of() -> None:
    figure = drawn(SMALL, FAST, SLOW, LARGE)
    (axes,) = figure.axes
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("1", (5.0, 70.0)), ("2", (6.0, 40.0))]
    assert axes.get_xlabel() == "time of a step, s"
    texts = [text.get_text() for text in figure.texts]
    assert texts[0] == "loss plain, recompute none: 5 s a step"
    assert "loss cut, recompute full\n6 s, 40 GB" in texts


def test_steps_of_unlike_batches_are_compared_by_their_tokens() -> None:
    (axes,) = drawn(FAST, case("cut", "full", 9.0, 40, pareto=True, tokens=2e6)).axes
    assert axes.get_xlabel() == "time of a million tokens, s"
    assert [text.xy[0] for text in axes.texts] == pytest.approx([4.5, 5.0])


def test_where_nothing_fits_it_says_so() -> None:
    assert drawn(LARGE).texts[0].get_text() == "None of these fits"

import numpy as np
import pytest
from page_reading import Page
from report_sample import memory, origin, step, summary
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.forecast.forecast import Forecast
from simulator.forecast.reading import open_any_scenario, read_scenario
from simulator.forecast.serving.forecast import ServingForecast, serve
from simulator.report import page as pages
from simulator.report.glossary import explanation
from simulator.report.headline import TIME_COLOURS, TIME_LABELS
from simulator.report.serving_page import serving_page
from simulator.report.training_page import training_page

LARGEST_BYTES = 2_500_000


def trained(**changes) -> Forecast:
    timeline = step(layers=2)
    return Forecast(summary(timeline) | changes, timeline, memory(timeline))


@pytest.fixture(scope="module")
def training() -> tuple[Forecast, Page]:
    found = trained()
    return found, Page(training_page(found, origin()))


@pytest.fixture(scope="module")
def serving() -> tuple[ServingForecast, Page]:
    document, folder = open_any_scenario(
        "llama3-8b-chat-1xh200", ["serving.requests.count=24", "serving.requests.concurrency=8"]
    )
    found = serve(document.content, folder)
    return found, Page(serving_page(found, origin()))


def test_figures_of_training_are_those_of_the_summary(training):
    forecast, page = training
    told = forecast.summary
    step_s, hbm = told["step_time_s"], told["memory"]["hbm"]
    assert page.of_id["step-time"] == [step_s["p50"], step_s["p10"], step_s["p90"]]
    assert page.of_id["throughput"] == [told["tokens_per_s"]]
    assert page.of_id["mfu"] == [0.147]
    assert page.of_id["hbm"] == [hbm["peak_bytes"]]
    assert page.of_id["cost"] == [4.61]
    parts = {key: [value] for key, value in told["time"].items() if value}
    kinds = {"gemm": [told["compute"]["gemm"]], "grouped_gemm": [told["compute"]["grouped_gemm"]]}
    assert page.figures["time"] == parts | kinds | {"step": [step_s["p50"]]}
    free = {"free": [141e9 - hbm["peak_bytes"]]}
    kinds = {kind: [size] for kind, size in hbm["breakdown"].items() if size}
    assert page.figures["memory"] == kinds | {"peak_bytes": [hbm["peak_bytes"]]} | free
    assert page.figures["provenance"] == {grade: [weight] for grade, weight in told["provenance"].items()}
    assert page.figures["collectives"] == {"": [748.0]}
    assert page.figures["traffic"] == {"all_to_all_bytes_per_micro_batch": [2.4e9]}
    assert page.figures["routing"] == {key: [value] for key, value in told["routing"].items()}


def test_figures_of_serving_are_those_of_the_summary(serving):
    forecast, page = serving
    told = forecast.summary
    for key in ("ttft_s", "tpot_s", "latency_s"):
        assert page.of_id[key] == [told[key]["p50"], told[key]["p90"], told[key]["p99"]]
    assert page.of_id["output"] == [told["output_tokens_per_s_per_accelerator"]]
    assert page.figures["time"] == {key: [value] for key, value in told["time"].items() if value > 0}
    assert page.figures["limits"] == {key: [value] for key, value in told["limits"].items() if value >= 0.0005}
    assert page.figures["memory"]["peak_bytes"] == [told["memory"]["hbm"]["peak_bytes"]]
    decode = told["iteration_s"]["decode"]
    assert page.figures["iterations"][""][:3] == [decode["p50"], decode["p10"], decode["p90"]]


def test_accelerators_that_compute_prompts_apart_are_told():
    apart = ["cluster.accelerators=2", "serving.prefill={accelerators: 1}", "serving.requests.count=24"]
    document, folder = open_any_scenario("llama3-8b-chat-1xh200", apart)
    forecast = serve(document.content, folder)
    found = Page(serving_page(forecast, origin()))
    parts = {key: [value] for key, value in forecast.summary["prefill"]["time"].items() if value > 0}
    assert found.figures["prefill"] == parts
    assert "plot-memory-hbm-prefill" in found.plots


def test_bars_are_as_long_as_their_parts(training, serving):
    for (forecast, page), whole in ((training, "step_time_s"), (serving, "duration_s")):
        total = forecast.summary[whole]
        total = total["p50"] if isinstance(total, dict) else total
        assert sum(trace["x"][0] for trace in page.plots["plot-time"]["data"]) == pytest.approx(total, rel=1e-5)


def test_memory_over_time_reaches_the_peak(training):
    forecast, page = training
    drawn = page.plots["plot-memory-over-time-hbm"]["data"]
    total = np.sum([trace["y"] for trace in drawn], axis=0)
    assert total.max() == pytest.approx(forecast.summary["memory"]["hbm"]["peak_bytes"] / 1e9, rel=1e-5)


def test_pages_load_nothing_and_may_load_nothing(training, serving):
    for _, page in (training, serving):
        assert all(name.startswith("#") for name in page.loads)
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; ")


def test_the_same_forecast_is_the_same_page(serving):
    assert training_page(trained(), origin()) == training_page(trained(), origin())
    forecast, _ = serving
    assert serving_page(forecast, origin()) == serving_page(forecast, origin())


def test_a_large_timeline_leaves_the_page_small():
    timeline = step(layers=93, micro_batches=8, pieces=4)
    text = training_page(Forecast(summary(timeline), timeline, memory(timeline)), origin())
    assert len(timeline.name) == 40_929
    assert len(text.encode()) < LARGEST_BYTES


def test_names_cannot_break_out(training):
    hostile = '</script><script>alert("x")</script>&<b>'
    _, usual = training
    found = Page(training_page(trained(scenario=hostile), origin(hostile)))
    assert found.scripts == usual.scripts
    assert hostile in found.words
    assert f"rackcast run '{hostile}' --set parallel.ep=64" in found.words


def test_what_makes_it_again_is_told(training):
    _, page = training
    assert "rackcast run kimi-k3.1-lora-128-h200 --set parallel.ep=64" in page.words
    assert "name: sample\nparallel: {ep: 64}" in page.words
    assert any("rackcast 1.2.3" in word for word in page.words)


def test_the_scenario_of_a_page_is_what_was_run(small, tmp_path):
    scenario, folder = small("mixture", "training.global_batch_sequences=32", "parallel.ep=8")
    changes = ["--set", "training.global_batch_sequences=32", "--set", "parallel.ep=8"]
    path = folder / "scenario-mixture.yaml"
    answer = CliRunner().invoke(app, ["run", str(path), *changes, "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    page = Page((tmp_path / "report.html").read_text())
    assert f"rackcast run {path} {' '.join(changes)}" in page.words
    told = next(word for word in page.words if word.startswith("name: small-mixture"))
    (folder / "again.yaml").write_text(told)
    assert read_scenario(str(folder / "again.yaml")) == (scenario, folder)


def test_a_job_that_does_not_fit_says_what_to_ask():
    found = Page(training_page(trained(fits=False, verdict="does not fit"), origin()))
    assert "rackcast fit kimi-k3.1-lora-128-h200 --set parallel.ep=64" in found.words


def test_requests_without_room_have_a_short_page():
    document, folder = open_any_scenario("llama3-8b-chat-1xh200", ["model=llama-3.1-70b"])
    forecast = serve(document.content, folder)
    page = Page(serving_page(forecast, origin()))
    hbm = forecast.summary["memory"]["hbm"]
    assert page.figures["memory"]["peak_bytes"] == [hbm["peak_bytes"]]
    assert set(page.plots) == {"plot-memory-hbm"}


def test_every_part_of_a_step_has_a_colour_and_an_explanation():
    assert TIME_COLOURS.keys() == TIME_LABELS.keys()
    assert [label for label in TIME_LABELS.values() if not explanation(label)] == []


def test_words_that_need_it_are_explained_where_they_stand(training):
    _, page = training
    assert page.explained["imbalance"] == "Waiting for a rank that has more to do, such as busier experts."
    assert {"MFU", "HBM", "step time", "dp_shard"} <= page.explained.keys()


def test_every_plot_tells_what_it_shows(training):
    forecast, found = training
    text = training_page(forecast, origin())
    assert text.count('role="img" aria-label="') == len(found.plots) == 6
    assert 'aria-label=""' not in text


def test_a_template_without_a_value_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        pages.page("shortage.html")

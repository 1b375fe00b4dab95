"""The pages in Debian's Chromium, from a file and with the network off."""

import os
import shutil
import time
from pathlib import Path

import pytest
from report_sample import memory, origin, step, summary

from simulator.forecast.forecast import Forecast
from simulator.forecast.reading import open_any_scenario
from simulator.forecast.serving.forecast import serve
from simulator.report.serving_page import serving_page
from simulator.report.training_page import training_page

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("no chromium here; .ci/run installs Debian's", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE_MS = 120_000
"""Other tests may keep all cores busy."""
DRAWN = "document.documentElement.dataset.drawn"
RANGE = "document.getElementById('plot-timeline')._fullLayout.xaxis.range"
INK = {"light": "rgb(29, 33, 37)", "dark": "rgb(228, 231, 234)"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """A folder with a page of training, one of serving, and one of requests that have no room."""
    folder = tmp_path_factory.mktemp("pages")
    timeline = step(layers=4, micro_batches=2, pieces=40)
    trained = Forecast(summary(timeline), timeline, memory(timeline))
    (folder / "training.html").write_text(training_page(trained, origin()))
    for name, changes in (("serving", ["serving.requests.count=24"]), ("shortage", ["model=llama-3.1-70b"])):
        document, home = open_any_scenario("llama3-8b-chat-1xh200", changes)
        (folder / f"{name}.html").write_text(serving_page(serve(document.content, home), origin()))
    return folder


@pytest.fixture(scope="module")
def browser():
    # Chromium's sandbox refuses to run for root, as in a container of continuous integration.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        except sync_api.Error as error:
            pytest.skip(f"Chromium does not start here: {error.message.splitlines()[0]}")
        yield started
        started.close()


def wait_until(page, condition: str) -> None:
    """Wait for a condition of the page, asked from outside: what waits inside of it would need `unsafe-eval`."""
    ends = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < ends, f"never came: {condition}"
        page.wait_for_timeout(20)


@pytest.fixture
def opened(browser, pages):
    """Opens a page; what it says on the console, and what it asks for beside itself, is an error."""
    contexts, wrong = [], []

    def opening(name: str, width: int = 1200, scheme: str = "light"):
        viewport = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, offline=True))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        address = (pages / name).as_uri()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url == address else wrong.append(asked.url))
        page.goto(address)
        wait_until(page, DRAWN)
        return page

    yield opening
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.parametrize(("name", "plots"), [("training.html", 6), ("serving.html", 5), ("shortage.html", 1)])
def test_a_page_draws_all_its_plots(opened, name, plots):
    page = opened(name)
    assert page.evaluate(DRAWN) == str(plots)
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(plot => plot.querySelectorAll('.trace path').length)"
    )
    assert len(drawn) == plots
    assert all(drawn)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_plots_have_the_colour_of_the_page(opened, scheme):
    page = opened("training.html", scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).color") == INK[scheme]
    words = "[...document.querySelectorAll('.plot text:not(.bartext)')].map(text => getComputedStyle(text).fill)"
    assert set(page.evaluate(words)) == {INK[scheme]}


@pytest.mark.parametrize("name", ["training.html", "serving.html", "shortage.html"])
def test_a_narrow_screen_needs_no_scrolling_to_the_side(opened, name):
    page = opened(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_timeline_is_enlarged_by_keyboard_and_by_dragging(opened):
    page = opened("training.html")
    start, end = page.evaluate(RANGE)
    assert start == 0
    page.get_by_role("button", name="Enlarge").focus()
    page.keyboard.press("Enter")
    wait_until(page, f"{RANGE}[0] > 0")
    assert page.evaluate(RANGE) == pytest.approx([end / 4, 3 * end / 4])
    page.get_by_role("button", name="Whole step").click()
    wait_until(page, f"{RANGE}[0] === 0")
    area = page.locator("#plot-timeline .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 22, steps=4)
    page.mouse.up()
    wait_until(page, f"{RANGE}[0] > 0")
    assert page.evaluate(RANGE) == pytest.approx([end / 4, end / 2], rel=0.02)


def test_a_bar_tells_what_it_is(opened):
    page = opened("training.html")
    page.get_by_role("button", name="Forward").click()
    wait_until(page, f"{RANGE}[0] > 0")
    bars = "document.getElementById('plot-timeline').data.flatMap(trace => trace.text)"
    told = next(text for text in page.evaluate(bars) if "dispatch" in text)
    assert told.startswith("<b>dispatch</b><br>forward, layer 1, micro-batch 0<br>")


def test_an_explanation_shows_on_focus(opened):
    page = opened("training.html")
    page.locator("abbr", has_text="MFU").first.focus()
    shown = "getComputedStyle(document.activeElement, '::after').content"
    assert page.evaluate(shown).startswith('"Model FLOPs utilization')


def test_a_print_has_what_is_folded_away(opened):
    page = opened("training.html")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(page.pdf()) > 10_000

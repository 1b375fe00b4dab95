"""All the way: points of a GPU that nobody knows become a set, and a forecast is priced with it."""

from dataclasses import replace
from pathlib import Path

import pytest
from calibrated import MACHINE, thinned

from simulator.calibration.profile import make_profile
from simulator.documents import load
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.hardware.accelerator import AcceleratorSheet
from simulator.hardware.collective import Timings
from simulator.hardware.curve import Curve
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import build_cluster, load_accelerator
from simulator.report.calibration_report import calibration_html

SLOWER = 2.0
TABLES = ("launch", "elementwise", "gemm", "sustained", "own_kernels", "host_copies", "collectives", "interference")


def half_as_fast(stored):
    """As if everything but the clock took twice as long."""
    points = tuple(
        replace(p, seconds=SLOWER * p.seconds, low_s=SLOWER * p.low_s, high_s=SLOWER * p.high_s)
        if p.kind != "launch" else p
        for p in stored.points
    )  # fmt: skip
    return replace(stored, points=points)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("profiles")
    machine = replace(MACHINE, gpu="NVIDIA X999", compute_units=132)
    return home, make_profile([half_as_fast(stored) for stored in thinned(*TABLES)], machine, home)


def test_the_set_has_the_form_that_is_shipped(made):
    home, profile = made
    assert profile.part == "x999"
    assert profile.like == "h100-sxm-96g-hbm2e"  # 2.4 TB/s as well
    assert profile.clock_s == pytest.approx(4.384e-6)
    written = {file.relative_to(home).as_posix() for file in profile.files}
    assert {"accelerators/x999.yaml", "nodes/2x-x999.yaml", "measured/x999/gemm.yaml"} <= written
    assert load(home / "accelerators" / "x999.yaml", AcceleratorSheet).name == "NVIDIA X999"
    assert load(home / "measured" / "x999" / "collectives.yaml", Timings).part == "x999"
    curves = [load(file, Curve) for file in (home / "measured" / "x999").glob("[!cp]*.yaml")]
    assert {curve.part for curve in curves} == {"x999"}


def test_a_part_half_as_fast_is_priced_so(made):
    home, _ = made
    mine, h200 = load_accelerator("accelerators/x999", home), load_accelerator("h200-sxm", Path())
    for kind, work in (
        ("gemm", (2 * 8192**3, 6 * 8192**2, (8192, 8192, 8192))),
        ("copy", (0, 4e9)),
        ("cast_up", (0, 4e9)),
    ):
        slow, fast = (kernel_time(part, kind, *work, alone=True) for part in (mine, h200))
        assert float(slow.seconds) == pytest.approx(SLOWER * float(fast.seconds), rel=0.08)
        assert slow.grade == "measured"
    assert kernel_time(mine, "softmax", 0, 1e9).grade == "scaled"


def test_public_kernels_are_as_much_slower_as_our_own(made):
    home, _ = made
    mine, h200 = load_accelerator("accelerators/x999", home), load_accelerator("h200-sxm", Path())
    work = ("kda", 169984.0 * 8192 * 96, 1282.0 * 8192 * 96)
    slow, fast = (float(kernel_time(part, *work).seconds) for part in (mine, h200))
    assert slow == pytest.approx(SLOWER * fast, rel=0.05)


def test_the_node_holds_what_was_measured(made):
    home, _ = made
    cluster = build_cluster("nodes/2x-x999", "single-node", 2, home)
    assert cluster.accelerator.id == "x999"
    node = cluster.node
    assert node.scale_up.compute_taken.value == pytest.approx(0.225, abs=0.001)
    assert node.host_link.d2h.value == pytest.approx(55.31e9 / SLOWER, rel=0.001)
    assert {node.host_link.h2d.grade, node.scale_up.compute_taken.grade} == {"measured"}
    gathered = node.scale_up.collectives["all_gather"]
    assert float(gathered.latency_s(2, 4096)) == pytest.approx(SLOWER * (5.168e-6 + 4.384e-6) - 4.384e-6, rel=0.01)


def test_a_forecast_is_priced_with_the_set(made):
    home, _ = made
    (home / "job.yaml").write_text(
        "name: mine\ndescription: on a calibrated node\nmodel: llama-3.1-8b\n"
        "cluster: {node: nodes/2x-x999, fabric: single-node, accelerators: 2}\n"
        "parallel: {dp_shard: 2}\n"
        "training: {sequence_length: 8192, micro_batch_sequences: 1, global_batch_sequences: 2, recompute: full}\n"
    )
    mine, theirs = (
        forecast(*read_scenario(str(home / "job.yaml"), changes)).summary["step_time_s"]["p50"]
        for changes in ((), ("cluster.node=hgx-h200",))
    )
    assert 1.6 < mine / theirs < 2.3


def test_the_page_draws_every_fit_and_its_intervals(made):
    _, profile = made
    page = calibration_html(profile)
    assert page.count("<img") == len(profile.fits) + len(profile.forms) == page.count("<table>")
    assert page.count('alt="Points of ') == len(profile.fits)
    assert "compute.0.points.0.1" in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_files_are_plain_text_of_one_form(made):
    _, profile = made
    assert all("!!" not in file.read_text() for file in profile.files)

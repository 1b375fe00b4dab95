import numpy as np
import pytest
from calibrated import STORED

from simulator.calibration.collective_timings import OPERATIONS, even, fit_form, prolonged, skewed_errors, timings
from simulator.calibration.point import Point

CLOCK_S = 4.32e-6
OWN = STORED["collectives"].points
KNOWN = ("mine", 450e9, 0.0, None, "there")


def collective(name, size, ranks, seconds, *more):
    return Point(name.split(",")[0], name, (size, ranks, *more), "bf16", 0.0, float(size), seconds, seconds, seconds)


def test_latency_wait_and_rate_come_back():
    sizes = np.array([2.0**n for n in range(12, 31)])
    truth = 5e-6 + 20e-6 * sizes / (sizes + 2**21) + sizes / 400e9
    found = {one.name: one for one in fit_form("all_gather", list(zip(sizes, truth, strict=True))).estimates}
    assert found["latency_s"].value == pytest.approx(5e-6, rel=0.01)
    assert found["wait_s"].value == pytest.approx(20e-6, rel=0.01)
    assert found["half_bytes"].value == pytest.approx(2**21, rel=0.02)
    assert found["bytes_per_s"].value == pytest.approx(400e9, rel=0.01)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_two_h200_lie_within_a_twentieth_of_the_form_in_the_middle(operation):
    form = fit_form(operation, even(OWN, operation, 2, CLOCK_S))
    assert form.median_error < 0.035
    assert form.worst_error < 0.2
    rate = next(one for one in form.estimates if one.name == "bytes_per_s")
    assert 300e9 < rate.low < rate.high < 700e9


def test_timings_are_what_was_measured_less_the_clock_and_formats_averaged():
    points = [collective(name, size, 2, s) for name in OPERATIONS for size, s in ((4096, 9e-6), (2**20, 20e-6))]
    points += [collective("all_gather", 4096, 2, 11e-6)]
    made = timings(points, "mine", 450e9, 4e-6, None, "here")
    (run,) = made.collectives["all_gather"]
    assert run.points == ((4096, pytest.approx(6e-6)), (2**20, pytest.approx(16e-6)))
    assert {name: runs[0].algorithm for name, runs in made.collectives.items()} == {
        "all_gather": "ring", "reduce_scatter": "ring", "all_reduce": "ring", "all_to_all": "pairwise"
    }  # fmt: skip


def test_an_all_reduce_faster_than_its_links_was_added_up_by_the_switch():
    # 1 GiB among 8: 2 x 7/8 GiB on every wire in 3 ms are 626 GB/s, over links of 450.
    points = [collective(name, size, 8, s) for name in OPERATIONS for size, s in ((4096, 9e-6), (2**30, 3e-3))]
    made = timings(points, "mine", 450e9, 4e-6, None, "here")
    assert made.collectives["all_reduce"][0].algorithm == "nvls"
    assert made.collectives["all_gather"][0].algorithm == "ring"


def test_groups_of_several_sizes_have_a_run_each_and_known_ones_of_others_stay():
    points = [
        collective(name, size, ranks, s * ranks)
        for name in OPERATIONS for ranks in (2, 8) for size, s in ((4096, 9e-6), (2**20, 20e-6))
    ]  # fmt: skip
    known = timings([collective(name, 2**n, 4, n * 1e-6) for name in OPERATIONS for n in (12, 20)], *KNOWN)
    runs = timings(points, "mine", 450e9, 4e-6, known, "here").collectives["all_gather"]
    assert [(run.ranks, run.source) for run in runs] == [(2, "here"), (4, "there"), (8, "here")]
    assert [run.points[0][1] for run in runs] == pytest.approx([14e-6, 12e-6, 68e-6])


def test_known_runs_go_on_by_own_timings_where_the_library_did_the_same():
    def made(sizes, reduced_s, *more):
        points = [
            collective(n, size, 8, reduced_s if n == "all_reduce" else 1e-3) for n in OPERATIONS for size in sizes
        ]
        return timings(points, *more)

    # 2 x 7/8 GiB of an all-reduce in 3 ms were added up by the switch; ours, 2 GiB in 9 ms, by links.
    known = made((2**20, 2**29, 2**30), 3e-3, *KNOWN)
    own = made((2**29, 2**30, 2**31), 9e-3, "mine", 450e9, 0.0, None, "here")
    longer = prolonged(known, own, "longer ones ours").collectives
    assert [size for size, _ in longer["all_gather"][0].points] == [2**20, 2**29, 2**30, 2**31]
    assert longer["all_gather"][0].source == "there; longer ones ours"
    assert longer["all_reduce"] == known.collectives["all_reduce"]


def test_a_skewed_exchange_is_priced_by_its_busiest_port():
    # Rank 0 receives 3 MB where an even exchange of 4 MB brings 2: as long as an even one of 6 MB.
    timed = ((4e6, 40e-6), (8e6, 60e-6))
    point = collective("all_to_all, skewed", 4_000_000, 2, 54e-6, 3_000_000)
    assert skewed_errors([point], timed, 2, 4e-6, 0.0) == [(4_000_000, pytest.approx(0.0))]
    # It sends 1 MB: where that counts for a quarter, 3.25 / 1.25 MB each way, as an even one of 5.2 MB, 46 us.
    assert skewed_errors([point], timed, 2, 4e-6, 0.25) == [(4_000_000, pytest.approx(46 / 50 - 1))]


def test_skewed_exchanges_of_two_h200():
    timed = even(OWN, "all_to_all", 2, CLOCK_S)
    found = dict(skewed_errors(OWN, timed, 2, CLOCK_S, 0.25))
    assert len(found) == 23
    # Too long at 8 MiB, where an even exchange changes its way.
    assert max(map(abs, found.values())) == found[2**23] == pytest.approx(0.364, abs=0.005)
    assert found[2**27] == pytest.approx(0.027, abs=0.002)
    assert found[2**30] == pytest.approx(-0.046, abs=0.002)
    # By the busiest way alone the large ones are too long: the nearly empty one leaves room.
    alone = dict(skewed_errors(OWN, timed, 2, CLOCK_S, 0.0))
    assert alone[2**27] == pytest.approx(0.170, abs=0.002)
    assert alone[2**30] == pytest.approx(0.098, abs=0.002)


def test_parts_off_16_bytes_take_twice_as_long():
    alike = {p.shape[0]: p.seconds for p in OWN if p.name == "all_to_all" and p.dtype == "bf16"}
    off = {p.shape[0]: p.seconds for p in OWN if p.name == "all_to_all, off 16 bytes"}
    longer = [off[size] / alike[size] for size in (2**20, 2**23, 2**27, 2**29, 2**30)]
    assert longer == pytest.approx([1.12, 1.56, 2.30, 2.76, 1.91], abs=0.01)

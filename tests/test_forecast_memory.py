import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Allocation
from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.forecast.memory import MemoryForecast, remember
from simulator.forecast.peaks import RankPeak

MATMUL_LIBRARY = 2 * 32 * 2**20
"""On an H200, for the two threads that multiply."""


@pytest.mark.parametrize(
    ("peak", "reserved", "verdict"),
    [(90.0, 98.0, "fits"), (90.0, 98.5, "tight"), (99.5, 98.5, "tight"), (100.5, 99.0, "does not fit")],
)
def test_what_is_reserved_beside_the_context_lies_between_fits_and_tight(
    peak: float, reserved: float, verdict: str
) -> None:
    ledgers = account([], [Allocation("p", "parameters", np.array([1.0, peak]))], 2)
    memory = MemoryForecast(
        ledgers, {"hbm": 100.0}, reserved, outside_bytes=2.0, stage=0, peaks=(), settling_peak_bytes=0
    )
    assert (memory.hottest, memory.verdict) == (1, verdict)


def test_a_peak_before_steps_are_alike_must_fit_too() -> None:
    ledgers = account([], [Allocation("p", "parameters", 90.0)], 1)
    verdicts = [
        MemoryForecast(ledgers, {"hbm": 100.0}, 95.0, 2.0, 0, (), settling).verdict for settling in (99.0, 101.0)
    ]
    assert verdicts == ["fits", "does not fit"]


def test_a_tier_that_holds_nothing_is_told_with_its_capacity() -> None:
    ledgers = account([], [Allocation("p", "parameters", 8.0), Allocation("c", "context", 1.0)], 1)
    peak = RankPeak(0, 1, 0, 9.0, 6.0, "resident", None, None, "", "parameters")
    capacities = {"hbm": 10.0, "ddr": 20.0}
    memory = MemoryForecast(ledgers, capacities, 8.5, 1.0, stage=0, peaks=(peak,), settling_peak_bytes=7.0)
    found = memory.summary()
    assert found["ddr"] == {"peak_bytes": 0.0, "capacity_bytes": 20.0, "breakdown": {}, "made_of": []}
    assert found["hbm"]["breakdown"] == {"parameters": 8.0, "context": 1.0}
    assert (found["hbm"]["allocated_bytes"], found["hbm"]["reserved_bytes"]) == (8.0, 8.5)
    assert found["hbm"]["held_bytes"] == 8.0
    assert (found["hbm"]["first_step_peak_bytes"], found["hbm"]["settling_peak_bytes"]) == (6.0, 7.0)
    assert found["hbm"]["peaks"] == [peak.row()]


def test_a_program_that_keeps_something_raises(small: Small) -> None:
    read = small("dense")
    program, job = lower(read), assemble_job(*read)
    program.tasks[-1].allocates = (Allocation("leak", "workspace", 4096.0),)
    with pytest.raises(RuntimeError, match="4096 bytes of hbm are never released"):
        remember([program], job.cluster, job.folding)


@pytest.mark.parametrize("overrides", [(), ("parallel.ep=8", "routing.synthetic.sigma=1")])
def test_the_curve_rises_to_the_peak_that_the_summary_names(small: Small, overrides: tuple[str, ...]) -> None:
    found = forecast(*small("mixture", *overrides))
    (curve,) = found.memory
    held = sum(curve.bytes_by_kind.values())
    block = found.summary["memory"]["hbm"]
    assert held.max() == block["peak_bytes"] == pytest.approx(sum(block["breakdown"].values()), abs=10)
    assert all((kind >= 0).all() for kind in curve.bytes_by_kind.values())
    assert (np.diff(curve.time_ns) >= 0).all()
    # What is left at the end is what was there at the start.
    resident = sum(block["breakdown"][kind] for kind in ("parameters", "optimizer", "context"))
    assert held[-1] == resident + MATMUL_LIBRARY


def test_capacities_are_shares_of_the_node(small: Small) -> None:
    block = forecast(*small("dense")).summary["memory"]
    assert block["ddr"]["capacity_bytes"] == 1536e9 / 8
    assert block["nvme"]["capacity_bytes"] == 30.72e12 / 8

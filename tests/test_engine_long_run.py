from dataclasses import replace
from math import exp
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.long_run import LongRun, go_through

HOUR = 3600.0
CALM = LongRun(
    work_s=100 * HOUR, interval_s=2 * HOUR, stall_s=60.0, safe_s=60.0, restart_s=600.0,
    interruptions_per_s=0.0, broken_nodes_per_s=0.0, repair_s=24 * HOUR,
)  # fmt: skip


def course(run: LongRun, seed: int = 0):
    return go_through(run, np.random.default_rng(seed))


def test_without_failures_there_are_49_checkpoints_between_50_stretches():
    spent = course(CALM)
    assert (spent.work_s, spent.checkpoints_s, spent.failures) == (100 * HOUR, 49 * 60.0, 0)
    assert spent.wall_s == 100 * HOUR + 49 * 60


def test_a_last_stretch_is_shorter_where_work_does_not_divide():
    assert course(replace(CALM, work_s=99 * HOUR)).checkpoints_s == 49 * 60


def test_the_mean_is_what_daly_worked_out():
    # Daly 2006, equation 20: M exp(R / M) (exp((tau + delta) / M) - 1) Ts / tau, a checkpoint behind every stretch.
    run = replace(CALM, interruptions_per_s=1 / (5 * HOUR))
    m, stretch = 5 * HOUR, 2 * HOUR + 60
    expected = m * exp(600 / m) * (exp(stretch / m) - 1) * 50
    assert mean(course(run, seed).wall_s for seed in range(1500)) == pytest.approx(expected, rel=0.01)


def test_a_checkpoint_that_is_stored_later_undoes_more():
    run = replace(CALM, interruptions_per_s=1 / (5 * HOUR))
    late = replace(run, safe_s=1.5 * HOUR)
    assert mean(course(late, s).rework_s for s in range(200)) > 1.2 * mean(course(run, s).rework_s for s in range(200))


def test_broken_nodes_are_waited_for_unless_spare_ones_are_there():
    run = replace(CALM, broken_nodes_per_s=1 / (10 * HOUR))
    alone, spares = course(run), course(replace(run, spare_nodes=100))
    assert spares.waiting_s == 0
    # Every failure waits out a repair of a day.
    assert alone.waiting_s == alone.failures * 24 * HOUR


def test_failures_that_leave_no_time_are_told():
    with pytest.raises(ValueError, match="leave it no time"):
        course(replace(CALM, interruptions_per_s=1 / 60))


@given(
    st.floats(HOUR, 1000 * HOUR), st.floats(600, 5 * HOUR), st.floats(0, 900), st.floats(1e-7, 1e-4), st.integers(0, 3)
)
def test_all_work_is_done_once_and_more_spares_are_never_slower(work_s, interval_s, stall_s, rate, spares):
    run = replace(
        CALM, work_s=work_s, interval_s=interval_s, stall_s=stall_s, safe_s=stall_s,
        broken_nodes_per_s=rate, interruptions_per_s=rate, spare_nodes=spares,
    )  # fmt: skip
    spent = course(run)
    assert spent.work_s == pytest.approx(work_s)
    assert min(spent.rework_s, spent.restarts_s, spent.waiting_s) >= 0
    assert course(replace(run, spare_nodes=spares + 1)).waiting_s <= spent.waiting_s + 1e-6

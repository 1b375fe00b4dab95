import numpy as np
import pytest

from simulator.routing import read_table
from simulator.routing.drifting import DriftLaw, drifting, measure_drift
from simulator.routing.recording import Batch, Recording
from simulator.routing.trace import Trace, gather
from simulator.shipped import shipped

GITHUB = read_table(shipped("scenarios", "traces", "olmoe-github.json"))


def trace(counts: np.ndarray) -> Trace:
    """Of counts [steps, experts]."""
    found = gather(Recording("t", lambda hear: (Batch(0, step, counts=row) for step, row in enumerate(counts))))
    assert found is not None
    return found


def wandering(spread: float, persistence: float, tokens: float) -> Trace:
    rng = np.random.default_rng(0)
    away, rows = spread * rng.standard_normal(256), []
    for _ in range(100):
        rows.append(rng.poisson(tokens * np.exp(away)))
        away = persistence * away + spread * (1 - persistence**2) ** 0.5 * rng.standard_normal(256)
    return trace(np.array(rows, dtype=float))


@pytest.mark.parametrize(("spread", "persistence"), [(0.3, 0.9), (0.5, 0.5), (0.2, 0.95)])
@pytest.mark.parametrize("tokens", [200, 1e5])
def test_the_law_of_a_known_process_is_found_with_few_tokens_and_with_many(spread, persistence, tokens):
    law = measure_drift(wandering(spread, persistence, tokens))
    assert law is not None
    assert (law.spread, law.persistence) == (pytest.approx(spread, rel=0.05), pytest.approx(persistence, abs=0.02))


def test_what_only_chance_moves_stands_still():
    law = measure_drift(trace(np.random.default_rng(0).poisson(500, (50, 256)).astype(float)))
    assert law is not None
    assert law.spread < 0.01


def test_two_windows_do_not_make_a_law():
    assert measure_drift(trace(np.ones((2, 4)))) is None


def test_the_first_step_is_the_table_and_every_step_has_its_distribution():
    tables = list(drifting(GITHUB, 5, DriftLaw(0.3, 0.9), 8, np.random.default_rng(0)))
    assert (tables[0].counts == GITHUB.counts).all()
    for table in tables:
        assert (np.sort(table.counts) == np.sort(GITHUB.counts)).all()
    assert (tables[1].counts != GITHUB.counts).any()
    assert tables[4].name == "olmoe-github, step 4"


def test_no_spread_is_no_drift():
    for table in drifting(GITHUB, 3, DriftLaw(0.0, 0.5), 8, np.random.default_rng(0)):
        assert (table.counts == GITHUB.counts).all()


def test_a_drifting_table_has_nearly_the_law_that_was_asked_for():
    rng = np.random.default_rng(0)
    tables = drifting(GITHUB, 100, DriftLaw(0.3, 0.9), 8, rng)
    law = measure_drift(trace(np.array([1e6 * table.popularity[1] for table in tables])))
    assert law is not None
    # Keeping every step's distribution damps single experts' wandering somewhat.
    assert 0.22 < law.spread < 0.31
    assert 0.75 < law.persistence < 0.93


def test_the_same_seed_drifts_the_same_way():
    first, second = (list(drifting(GITHUB, 4, DriftLaw(0.5, 0.5), 8, np.random.default_rng(7)))[3] for _ in range(2))
    assert first.counts.tobytes() == second.counts.tobytes()

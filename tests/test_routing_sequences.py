import numpy as np
import pytest

from simulator.routing import read_table
from simulator.routing.sequences import domain_shares
from simulator.shipped import shipped

TABLE = read_table(shipped("scenarios", "traces", "olmoe-c4.json"))
TOKENS = np.array([1000.0, 3000.0, 2000.0])


def shares(spread: float) -> np.ndarray:
    return domain_shares(TABLE, TOKENS, spread, np.random.default_rng(0))


def test_domains_differ_and_together_are_the_table():
    found = shares(0.93)
    assert found.sum(axis=2) == pytest.approx(np.ones((3, 3)))
    assert np.average(found, axis=0, weights=TOKENS) == pytest.approx(TABLE.popularity, rel=1e-3)
    assert np.log(found[0] / found[1]).std() == pytest.approx(2**0.5 * 0.93, rel=0.2)


def test_without_spread_every_domain_is_the_table():
    assert shares(0.0) == pytest.approx(np.stack([TABLE.popularity] * 3))

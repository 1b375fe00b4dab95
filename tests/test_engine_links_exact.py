"""Max-min shares beside two exact solvers: the same rule in fractions, and a chain of linear programs."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.links import fair_shares

NAMES = [f"link {number}" for number in range(6)]
USAGES = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 64).map(lambda n: n / 64), max_size=4),
    min_size=1,
    max_size=12,
)


def in_fractions(usages: list[Mapping[str, float]]) -> list[Fraction]:
    """All shares rise together; a full link, or a share of one, freezes them. No rounding anywhere."""
    exact = [{link: Fraction(usage) for link, usage in one.items()} for one in usages]
    shares, active = [Fraction(0)] * len(exact), set(range(len(exact)))
    while active:
        level = shares[min(active)]
        most = Fraction(1)
        for link in {link for one in exact for link in one}:
            frozen = sum(shares[i] * one.get(link, 0) for i, one in enumerate(exact) if i not in active)
            wanted = sum(exact[i].get(link, Fraction(0)) for i in active)
            if wanted:
                most = min(most, (1 - frozen) / wanted)
        assert most >= level
        for i in active:
            shares[i] = most
        full = {
            link
            for link in {link for one in exact for link in one}
            if sum(share * one.get(link, 0) for share, one in zip(shares, exact, strict=True)) == 1
        }
        active = {i for i in active if most < 1 and not full & set(exact[i])}
    return shares


def by_linear_programs(usages: list[Mapping[str, float]]) -> list[float]:
    """The largest least share; then, with those fixed that cannot have more, the largest least of the rest."""
    linprog = pytest.importorskip("scipy.optimize").linprog
    matrix = np.array([[one.get(link, 0.0) for one in usages] for link in NAMES])
    count, fixed = len(usages), {}
    while len(fixed) < count:
        free = [i for i in range(count) if i not in fixed]

        def largest(weights, least, free=free, fixed=fixed):
            rows = [*matrix, *(-np.eye(count)[i] for i in free)]
            bounds = [(fixed[i], fixed[i]) if i in fixed else (0, 1) for i in range(count)]
            below = [1.0] * len(NAMES) + [0.0] * len(free)
            grown = np.column_stack([rows, [0.0] * len(NAMES) + [1.0] * len(free)])
            found = linprog(
                [*(-w for w in weights), -float(not any(weights))], grown, below, bounds=[*bounds, (least, 1)]
            )
            return found.x

        level = largest([0.0] * count, 0.0)[-1]
        alone = {i: largest([float(i == j) for j in range(count)], level - 1e-9)[i] for i in free}
        fixed |= {i: level for i in free if alone[i] < level + 1e-7}
    return [fixed[i] for i in range(count)]


@given(USAGES)
@settings(deadline=None)
def test_shares_are_those_of_exact_filling(usages):
    assert fair_shares(usages) == pytest.approx([float(share) for share in in_fractions(usages)], abs=1e-9)


def test_shares_are_those_of_linear_programs():
    rng = np.random.default_rng(5)
    for _ in range(20):
        usages = [
            {NAMES[link]: float(rng.integers(1, 65)) / 64 for link in rng.choice(6, rng.integers(1, 4), replace=False)}
            for _ in range(8)
        ]
        assert fair_shares(usages) == pytest.approx(by_linear_programs(usages), abs=1e-6)

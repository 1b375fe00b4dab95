"""The Pareto front: candidates that no other one beats in everything."""

from __future__ import annotations

from collections.abc import Iterable


def front(candidates: Iterable[tuple[float, ...]]) -> list[int]:
    """Numbers of the candidates (number, cost, cost, ...) on the front; less is better, equals stay together."""
    found = [(int(number), costs) for number, *costs in candidates]
    return [number for number, costs in found if not any(_beats(other, costs) for _, other in found)]


def _beats(one: list[float], other: list[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))

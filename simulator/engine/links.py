"""Shared links: concurrent transfers get max-min fair speeds.

A transfer (the wave of one collective) is known by how busy it keeps each class of links when it runs alone. Running
at a share x of its own full speed, it uses x times that. Shares are max-min fair: raised together until a class of
links is full, which freezes the transfers on it (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2).

It is a mean over the links of a class: right for symmetric traffic, and pessimistic where two transfers load different
links of one class. One timer serves all transfers, so cost does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping

import simpy

_FULL = 1.0 - 1e-12


def fair_shares(usages: list[Mapping[str, float]]) -> list[float]:
    """The max-min fair share of its own full speed for each transfer, given its *usages* of link classes (0 to 1)."""
    shares = [0.0] * len(usages)
    active = set(range(len(usages)))
    left = {link: 1.0 for usage in usages for link in usage}
    while active:
        step = min([1.0 - shares[i] for i in active] + _headroom(usages, active, left))
        for i in active:
            shares[i] += step
            for link, usage in usages[i].items():
                left[link] -= step * usage
        full = {link for link, rest in left.items() if rest <= 1e-12}
        active = {i for i in active if shares[i] < _FULL and not any(u > 0 and k in full for k, u in usages[i].items())}
    return shares


def _headroom(usages: list[Mapping[str, float]], active: set[int], left: Mapping[str, float]) -> list[float]:
    """How far all active shares can rise together before each class of links is full."""
    demand: dict[str, float] = {}
    for i in sorted(active):
        for link, usage in usages[i].items():
            demand[link] = demand.get(link, 0.0) + usage
    return [max(left[link], 0.0) / total for link, total in demand.items() if total > 0]


class _Transfer:
    """A transfer under way."""

    __slots__ = ("done", "left_ns", "share", "usage")

    def __init__(self, alone_ns: int, usage: Mapping[str, float], done: simpy.Event) -> None:
        self.left_ns = float(alone_ns)
        self.usage = usage
        self.done = done
        self.share = 1.0


class Links:
    """All links of the cluster as far as concurrent transfers compete for them."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._active: list[_Transfer] = []
        self._since: float = 0
        self._timer = 0

    def transfer(self, alone_ns: int, link_busy_ns: Mapping[str, float]) -> simpy.Event:
        """Start a transfer that takes *alone_ns* without competition; the event fires when it has finished."""
        done = self._env.event()
        if alone_ns <= 0:
            return done.succeed()
        usage = {link: min(1.0, busy / alone_ns) for link, busy in sorted(link_busy_ns.items()) if busy > 0}
        self._advance()
        self._active.append(_Transfer(alone_ns, usage, done))
        self._share_out()
        return done

    def _advance(self) -> None:
        elapsed = self._env.now - self._since
        for transfer in self._active:
            transfer.left_ns -= elapsed * transfer.share
        self._since = self._env.now

    def _share_out(self) -> None:
        """Give everyone its new share and set the one timer to the first that will finish."""
        for transfer, share in zip(self._active, fair_shares([t.usage for t in self._active]), strict=True):
            transfer.share = share
        self._timer += 1
        if self._active:
            first = min(transfer.left_ns / transfer.share for transfer in self._active)
            self._env.process(self._wake(self._timer, max(0, -int(-(first - 1e-6) // 1))))

    def _wake(self, timer: int, delay_ns: int) -> simpy.events.ProcessGenerator:
        yield self._env.timeout(delay_ns)
        if timer != self._timer:
            return
        self._advance()
        finished = [t for t in self._active if t.left_ns / t.share < 1.0 - 1e-6]
        self._active = [t for t in self._active if t not in finished]
        for transfer in finished:
            transfer.done.succeed()
        self._share_out()

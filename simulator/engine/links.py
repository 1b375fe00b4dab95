"""Shared links: concurrent transfers get max-min fair speeds.

A transfer (the wave of one collective) is known by how busy it keeps each class of links when it runs alone. Running
at a share x of its own full speed, it uses x times that. Shares are max-min fair: raised together until a class of
links is full, which freezes the transfers on it (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2).

It is a mean over the links of a class: right for symmetric traffic, and pessimistic where two transfers load different
links of one class. One timer serves all transfers, so cost does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import simpy

NEVER = -1
_FULL = 1.0 - 1e-12


def fair_shares(usages: list[Mapping[str, float]]) -> list[float]:
    """The max-min fair share of its own full speed for each transfer, given its *usages* of link classes (0 to 1)."""
    shares = [0.0] * len(usages)
    if not _crowded(usages):
        return [1.0] * len(usages)
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


def _crowded(usages: list[Mapping[str, float]]) -> bool:
    """Whether any class of links has too little for all of its transfers at full speed."""
    demand: dict[str, float] = {}
    for usage in usages:
        for link, used in usage.items():
            demand[link] = demand.get(link, 0.0) + used
    return any(total > 1.0 for total in demand.values())


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
        self._since = 0
        self._due = NEVER
        self._usages: dict[tuple[int, int], tuple[Mapping[str, float], Mapping[str, float]]] = {}

    def transfer(
        self, alone_ns: int, link_busy_ns: Mapping[str, float], done: simpy.Event | None = None
    ) -> simpy.Event:
        """Start a transfer that takes *alone_ns* without competition; the event, *done* if given, fires when it has
        finished.
        """
        done = done or self._env.event()
        if alone_ns <= 0:
            return done.succeed()
        self._advance()
        self._active.append(_Transfer(alone_ns, self._usage(alone_ns, link_busy_ns), done))
        self._share_out()
        return done

    def _usage(self, alone_ns: int, link_busy_ns: Mapping[str, float]) -> Mapping[str, float]:
        """Shares of the links' time, remembered, since most transfers are alike."""
        key = id(link_busy_ns), alone_ns
        if key not in self._usages:
            usage = {link: min(1.0, busy / alone_ns) for link, busy in sorted(link_busy_ns.items()) if busy > 0}
            # The times are kept, so that no others can be given their identity.
            self._usages[key] = link_busy_ns, usage
        return self._usages[key][1]

    def _advance(self) -> None:
        elapsed = int(self._env.now) - self._since
        if elapsed:
            for transfer in self._active:
                transfer.left_ns -= elapsed * transfer.share
            self._since += elapsed

    def _share_out(self) -> None:
        """Give everyone its new share and set the timer to the first that will finish."""
        active = self._active
        if len(active) > 1:
            for transfer, share in zip(active, fair_shares([t.usage for t in active]), strict=True):
                transfer.share = share
            first = min([transfer.left_ns / transfer.share for transfer in active])
        elif active:
            active[0].share = 1.0
            first = active[0].left_ns
        else:
            return
        delay = max(0, ceil(first - 1e-6))
        if self._since + delay != self._due:
            self._due = self._since + delay
            self._env.timeout(delay).callbacks.append(self._wake)

    def _wake(self, _timer: simpy.Event) -> None:
        """Let go what has finished, unless the timer was set to another time since."""
        if self._env.now != self._due:
            return
        self._due = NEVER
        self._advance()
        finished = [transfer for transfer in self._active if transfer.left_ns / transfer.share < 1.0 - 1e-6]
        self._active = [transfer for transfer in self._active if transfer not in finished]
        for transfer in finished:
            transfer.done.succeed()
        self._share_out()

"""A sweep: many cases over workers. Each finished one is kept and none runs twice; a failed one is recorded too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from simulator.planner.case import Case, Row, failed_row, run_case
from simulator.planner.store import Store
from simulator.planner.workers import WorkerLost, Workers

Heard = Callable[[int, int, float | None], None]
"""Hears how many cases are done, of how many, and the seconds left, where that is known."""
WRITE_EVERY_S = 1.0
"""Finished cases wait no longer than this before they are written down."""
MOST_LOSSES = 3
"""Workers that may be lost before the rest of the cases run one by one, to find out which of them ends its worker."""


def run_cases(cases: Iterable[Case], store: Store, workers: Workers, hear: Heard | None = None) -> dict[str, Row]:
    """The rows of *cases* by key: those that *store* has, and the others run and stored."""
    asked = {case.key: case for case in cases}
    missing = [case for key, case in asked.items() if key not in store.rows]
    meter = _Meter(len(asked), len(asked) - len(missing), workers.at_once, hear)
    for _ in range(MOST_LOSSES):
        missing = [case for case in missing if case.key not in store.rows]
        if _run(missing, store, workers, meter):
            break
    else:
        for case in missing:
            if case.key not in store.rows and not _run([case], store, workers, meter):
                store.add([failed_row(case.key, case.settings, "its worker was killed; is the memory full?")])
                meter.count()
    return {key: store.rows[key] for key in asked}


def _run(cases: list[Case], store: Store, workers: Workers, meter: _Meter) -> bool:
    """Run *cases*; False when a worker was lost before all were done."""
    waiting: list[Row] = []
    written = monotonic()
    try:
        for row in workers.results(run_case, cases):
            waiting.append(row)
            meter.count()
            if monotonic() - written >= WRITE_EVERY_S:
                store.add(waiting)
                waiting, written = [], monotonic()
    except WorkerLost:
        return False
    finally:
        store.add(waiting)
    return True


class _Meter:
    """Counts cases and tells how long the others will take, from the pace of those that ended since each of the workers
    *at_once* had ended one: until then they were starting, and several are about to end.
    """

    def __init__(self, total: int, done: int, at_once: int, hear: Heard | None) -> None:
        self._total, self._done, self._fresh = total, done, -at_once
        self._hear = hear
        self._since = monotonic()
        self._tell()

    def count(self) -> None:
        """One more is done."""
        self._done += 1
        self._fresh += 1
        if self._fresh == 0:
            self._since = monotonic()
        self._tell()

    def _tell(self) -> None:
        if self._hear is not None:
            pace_s = (monotonic() - self._since) / self._fresh if self._fresh > 0 else None
            self._hear(self._done, self._total, None if pace_s is None else pace_s * (self._total - self._done))

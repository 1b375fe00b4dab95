"""A calibration run: what is not yet measured is, table by table; what is finished is kept and taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simulator.calibration.machine import Machine, NothingToMeasureError
from simulator.calibration.plan import Table, tables
from simulator.calibration.point import Point
from simulator.calibration.store import Stored, read, write

Message = dict[str, Any]
Start = Callable[[tuple[Table, ...], Machine, bool], Iterable[Message]]
"""Starts the processes that measure tables, (tables, machine, quick), and yields what they say."""
Hear = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    table: str
    done: int
    shapes: int
    fraction: float
    """Of all that this run measures, by expected time."""
    left_s: float
    """About how much longer, at the pace of the run so far."""
    finished: bool
    """The table is, and is kept."""


class _Pace:
    """Expected seconds beside those that went by."""

    def __init__(self, missing: tuple[Table, ...]) -> None:
        self._whole_s = sum(table.expected_s for table in missing)
        self._done_s = 0.0
        self._begun = time.monotonic()

    def shape(self, table: Table) -> None:
        self._done_s += table.shape_s

    def progress(self, table: Table, done: int, *, finished: bool) -> Progress:
        fraction = min(1.0, self._done_s / self._whole_s) if self._whole_s else 1.0
        pace = (time.monotonic() - self._begun) / self._done_s if self._done_s else 1.0
        left_s = max(0.0, self._whole_s - self._done_s) * pace
        return Progress(table.name, done, len(table.shapes), fraction, left_s, finished)


def run(machine: Machine, folder: Path, *, quick: bool, hear: Hear, start: Start | None = None) -> tuple[Stored, ...]:
    """Measure what *folder* does not hold yet of the tables of *machine*, and return all of them.

    *start* is how processes are started, `processes` unless another is given. A table that stands in *folder* with
    the same shapes, from the same GPU and libraries, is kept; so a run that was killed goes on where it was.
    """
    wanted = tables(quick=quick, gpus=machine.gpus, drives=machine.drives)
    missing = tuple(table for table in wanted if not _kept(folder, table, machine))
    pace = _Pace(missing)
    for together in (False, True):
        some = tuple(table for table in missing if table.together is together)
        if some:
            _gather((start or processes)(some, machine, quick), some, machine, folder, hear, pace)
    return tuple(stored for table in wanted if (stored := read(folder / f"{table.name}.parquet")) is not None)


def _kept(folder: Path, table: Table, machine: Machine) -> bool:
    stored = read(folder / f"{table.name}.parquet")
    return stored is not None and stored.holds(table, machine)


def _gather(
    messages: Iterable[Message], asked: tuple[Table, ...], machine: Machine, folder: Path, hear: Hear, pace: _Pace
) -> None:
    """Write each table when it is finished."""
    by_name = {table.name: table for table in asked}
    points: list[Point] = []
    refused: list[Message] = []
    done = 0
    for message in messages:
        table = by_name[message["table"]]
        if "point" in message:
            points.append(_point(message["point"]))
        elif "refused" in message:
            refused.append(message["refused"])
        elif "shape_done" in message:
            done += 1
            pace.shape(table)
            hear(pace.progress(table, done, finished=False))
        else:
            date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            told = message["finished"]
            write(
                Stored(table.name, table.digest, date, told["wall_s"], told["clocks"], refused, machine, tuple(points)),
                folder,
            )
            hear(pace.progress(table, done, finished=True))
            points, refused, done = [], [], 0


def _point(told: dict[str, Any]) -> Point:
    return Point(**told | {"shape": tuple(told["shape"]), "rows": tuple(told["rows"])})


def processes(asked: tuple[Table, ...], machine: Machine, quick: bool) -> Iterator[Message]:
    """Measure in one process, or in one a GPU where tables need them together.

    Raise :exc:`NothingToMeasureError` with the last line of what went wrong if they do not end well.
    """
    several = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={machine.gpus}")
    launcher = several if asked[0].together else ()
    arguments = ("quick" if quick else "full", str(machine.gpus), *(table.name for table in asked))
    command = [sys.executable, *launcher, "-m", "simulator.calibration", *arguments]
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,  # noqa: S603
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"table": '):
                    yield json.loads(line)
        except BaseException:
            process.terminate()
            raise
        if process.wait():
            complaints.seek(0)
            last = (complaints.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise NothingToMeasureError(f"measuring {', '.join(t.name for t in asked)} failed: {last}")

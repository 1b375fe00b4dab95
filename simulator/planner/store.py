"""Finished cases on disk, in parquet: one row a case, read with DuckDB, pandas or pyarrow.

Rows are written in small part files while a sweep runs, each whole or not at all, and joined into `cases.parquet` when
it ends. Until then, and after a kill, `*.parquet` in the folder holds everything that was finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.planner.case import COLUMNS, Row

if TYPE_CHECKING:
    import pyarrow as pa

JOINED = "cases.parquet"


class Store:
    """The rows in one folder, which is made when the first of them is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        """Finished cases by key."""
        for path in self._parts():
            self.rows.update((row["key"], row) for row in _read(path))

    @property
    def file(self) -> Path:
        """Where all rows are once they are joined."""
        return self.folder / JOINED

    def add(self, rows: Iterable[Row]) -> None:
        """Write *rows* as one more part."""
        fresh = {row["key"]: row for row in rows}
        if not fresh:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        first = next(iter(fresh))
        _write(fresh.values(), self.folder / f"part-{first}.parquet")
        self.rows.update(fresh)

    def join(self) -> None:
        """Make one file of all parts. A kill in between leaves rows twice on disk, and once in the next reading."""
        parts = [path for path in self._parts() if path.name != JOINED]
        if parts:
            _write(self.rows.values(), self.file)
            for path in parts:
                path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))


def _read(path: Path) -> list[Row]:
    from pyarrow import parquet

    rows: list[Row] = parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    return rows


def _write(rows: Iterable[Row], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        parquet.write_table(pa.Table.from_pylist(list(rows), schema=_schema()), hidden, compression="zstd")
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"text": pa.string(), "number": pa.float64()}
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])

"""Tables of points on disk: one parquet file each, which says where, when and how it was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from simulator.calibration.machine import Machine
from simulator.calibration.plan import Shape, Table
from simulator.calibration.point import Point

_KEY = b"rackcast"


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished table."""

    name: str
    digest: str
    """Of the shapes that were measured."""
    date: str
    wall_s: float
    clocks: Mapping[str, Sequence[float]]
    """[least, median, most] of what the driver's tool said meanwhile."""
    refused: Sequence[Mapping[str, Any]]
    """Shapes that did not run, and why."""
    machine: Machine
    points: tuple[Point, ...] = ()

    def holds(self, table: Table, machine: Machine) -> bool:
        """Whether it is what *table* asks for, measured on GPUs and libraries like those of *machine*."""
        return self.digest == table.digest and _alike(self.machine, machine, together=table.together)

    def refuses(self, shape: Shape) -> bool:
        """Whether *shape* did not run."""
        return any(tuple(one["shape"]) == shape for one in self.refused)


def _alike(one: Machine, other: Machine, *, together: bool) -> bool:
    same = (one.gpu, one.torch, one.cuda) == (other.gpu, other.torch, other.cuda)
    return same and (not together or (one.gpus, one.settings) == (other.gpus, other.settings))


def write(stored: Stored, folder: Path) -> None:
    """Write *stored* into *folder*, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole, single = pa.list_(pa.int64()), pa.float32()
    kinds = {"kind": pa.string(), "name": pa.string(), "shape": whole, "rows": pa.list_(pa.int32())}
    figures = {"dtype": pa.string(), "backward": pa.bool_(), "flops": pa.float64(), "bytes": pa.float64()}
    times = {"seconds": single, "low_s": single, "high_s": single}
    said = {f.name: getattr(stored, f.name) for f in fields(stored) if f.name not in {"points", "machine"}}
    about = {_KEY: json.dumps(said | {"machine": asdict(stored.machine)}).encode()}
    schema = pa.schema(kinds | figures | times, metadata=about)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{stored.name}.unfinished"
    pq.write_table(pa.Table.from_pylist([asdict(p) for p in stored.points], schema), unfinished, compression="zstd")
    unfinished.replace(folder / f"{stored.name}.parquet")


def read(file: Path) -> Stored | None:
    """The table of *file*; None where there is none, or one that is no such table."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    if not file.is_file():
        return None
    try:
        found = pq.read_table(file)
        about = json.loads((found.schema.metadata or {})[_KEY])
    except (ArrowException, KeyError, ValueError):
        return None
    points = tuple(Point(**_tupled(row)) for row in found.to_pylist())
    return Stored(**about | {"machine": Machine(**about["machine"])}, points=points)


def read_all(folder: Path) -> tuple[Stored, ...]:
    """Every table of *folder*, by name."""
    return tuple(stored for file in sorted(folder.glob("*.parquet")) if (stored := read(file)) is not None)


def _tupled(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"shape": tuple(row["shape"]), "rows": tuple(row["rows"])}

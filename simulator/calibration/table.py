"""Points from lines of JSON to a parquet table: `python -m simulator.calibration.table POINTS.jsonl points.parquet`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from simulator.calibration.point import Point


def write_table(lines: Path, table: Path) -> int:
    """Write the points of *lines* as *table* and return how many there are. Needs pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole, single = pa.list_(pa.int32()), pa.float32()
    kinds = {"kind": pa.string(), "name": pa.string(), "shape": whole, "rows": whole, "dtype": pa.string()}
    figures = {"backward": pa.bool_(), "flops": pa.float64(), "bytes": pa.float64()}
    times = {"seconds": single, "low_s": single, "high_s": single}
    points = [asdict(Point(**json.loads(line))) for line in lines.read_text().splitlines() if line.strip()]
    pq.write_table(pa.Table.from_pylist(points, pa.schema(kinds | figures | times)), table, compression="zstd")
    return len(points)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m simulator.calibration.table POINTS.jsonl points.parquet")
    write_table(Path(sys.argv[1]), Path(sys.argv[2]))

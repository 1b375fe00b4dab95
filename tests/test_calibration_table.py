import json
from dataclasses import asdict

import pyarrow.parquet as pq

from simulator.calibration.point import Point
from simulator.calibration.table import write_table
from simulator.shipped import shipped

MEASURED = shipped("hardware_profiles", "measured", "h200-sxm", "points.parquet")
GROUPED = Point("grouped_gemm", "y = x W, even", (2, 3, 8, 8, 3), "bf16", 768.0, 352.0, 2e-5, 1e-5, 3e-5, False, (3, 3))
PLAIN = Point("copy", "copy bf16", (64,), "bf16", 0.0, 256.0, 5e-6, 5e-6, 6e-6)


def test_points_become_a_table_of_the_form_that_is_shipped(tmp_path):
    lines, table = tmp_path / "points.jsonl", tmp_path / "points.parquet"
    lines.write_text("".join(json.dumps(asdict(point)) + "\n" for point in (GROUPED, PLAIN)))
    assert write_table(lines, table) == 2
    written = pq.read_table(table)
    assert written.schema.equals(pq.read_schema(MEASURED))
    assert written.column("rows").to_pylist() == [[3, 3], []]
    assert written.column("bytes").to_pylist() == [352.0, 256.0]

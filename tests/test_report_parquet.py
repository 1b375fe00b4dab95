import io

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from report_sample import LOAD, RANKS, step

from simulator.report.parquet import write_parquet


def written(timeline):
    file = io.BytesIO()
    write_parquet(timeline, file)
    return parquet.read_table(io.BytesIO(file.getvalue()))


def test_a_row_per_task_and_telling_rank():
    timeline = step(layers=2)
    table = written(timeline)
    tasks = len(timeline.name)
    assert table.num_rows == 3 * tasks
    assert table["rank"].to_pylist() == [rank.rank for rank in RANKS for _ in range(tasks)]
    assert table["label"].to_pylist() == [rank.label for rank in RANKS for _ in range(tasks)]
    assert table["task"].to_pylist() == list(range(tasks)) * 3
    for column in ("name", "stream", "kind", "phase"):
        assert table[column].to_pylist() == list(getattr(timeline, column)) * 3, column
    for column in ("layer", "micro_batch"):
        assert table[column].to_pylist() == getattr(timeline, column).tolist() * 3, column
    for column in ("start_ns", "end_ns", "wire_bytes"):
        assert table[column].to_pylist() == getattr(timeline, column).T.ravel().tolist(), column


def test_text_is_stored_as_dictionaries_and_time_as_whole_nanoseconds():
    schema = written(step(layers=2)).schema
    for column in ("label", "name", "stream", "kind", "phase"):
        assert pa.types.is_dictionary(schema.field(column).type), column
    assert schema.field("start_ns").type == schema.field("end_ns").type == pa.int64()
    assert schema.field("wire_bytes").type == pa.float64()


def test_bytes_of_the_hottest_rank_add_up():
    table = written(step(layers=2)).filter(pa.compute.field("rank") == 5)
    sent = np.array(table["wire_bytes"])[np.array(table["stream"]) == "all_to_all"]
    assert sent.sum() == 2 * 2 * 2 * 3e8 * LOAD[1]

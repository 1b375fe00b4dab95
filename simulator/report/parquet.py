"""The timeline as a table for pandas, DuckDB or polars: one row per task and telling rank, ranks one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from simulator.forecast.timeline import Timeline


def timeline_table(timeline: Timeline) -> pa.Table:
    """Columns rank, label, task, name, stream, kind, phase (text as dictionaries), layer and micro_batch (-1: none),
    start_ns, end_ns (int64), wire_bytes (float64) and waited_for (the number of a task; -1: none).
    """
    import pyarrow as pa

    ranks, tasks = len(timeline.ranks), len(timeline.name)

    def text(values: tuple[str, ...]) -> pa.ChunkedArray:
        # Encoded once and repeated by reference: the columns of the second rank cost nothing. Arrow's own encoder would
        # bring in all of its functions, which takes longer.
        number = {word: place for place, word in enumerate(dict.fromkeys(values))}
        places = pa.array(np.array([number[word] for word in values], np.int32))
        return pa.chunked_array([pa.DictionaryArray.from_arrays(places, pa.array(list(number), pa.string()))] * ranks)

    def per_task(values: np.ndarray) -> pa.Array:
        return pa.array(np.tile(values.astype(np.int32), ranks))

    def per_rank(values: np.ndarray, dtype: type) -> pa.Array:
        return pa.array(values.astype(dtype).ravel(order="F"))

    labels = pa.array([rank.label for rank in timeline.ranks], pa.string())
    which = np.repeat(np.arange(ranks, dtype=np.int32), tasks)
    return pa.table(
        {
            "rank": pa.array(np.repeat(np.array([rank.rank for rank in timeline.ranks], np.int64), tasks)),
            "label": pa.DictionaryArray.from_arrays(pa.array(which), labels),
            "task": per_task(np.arange(tasks)),
            "name": text(timeline.name),
            "stream": text(timeline.stream),
            "kind": text(timeline.kind),
            "phase": text(timeline.phase),
            "layer": per_task(timeline.layer),
            "micro_batch": per_task(timeline.micro_batch),
            "start_ns": per_rank(timeline.start_ns, np.int64),
            "end_ns": per_rank(timeline.end_ns, np.int64),
            "wire_bytes": per_rank(timeline.wire_bytes, np.float64),
            "waited_for": per_rank(timeline.waited_for, np.int32),
        }
    )


def write_parquet(timeline: Timeline, file: BinaryIO) -> None:
    """Write :func:`timeline_table` to *file*, compressed with zstandard."""
    from pyarrow import parquet

    parquet.write_table(timeline_table(timeline), file, compression="zstd")

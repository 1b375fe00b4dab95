"""The timeline as a Chrome trace, which Perfetto and Holistic Trace Analysis (HTA) open.

One process per telling rank, one thread per stream, one "X" event per task, and counters of the memory held. HTA
takes one rank per file, reads the events that have a `cat` and drops the rest, calls an event a GPU kernel if it has
`args.stream`, and tells communication by a name that matches `^nccl.*Kernel` and a copy by one that begins with
"Memcpy" (its parser and `utils.py`, release 0.5.0). So names of collectives and copies are dressed that way, and only
the first telling rank has `cat`: in HTA the file is that rank, whose number stands in `distributedInfo`. Perfetto
shows all.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from simulator.report.kinds import group_of, streams_in_order
from simulator.report.thinning import envelope, total_bytes

if TYPE_CHECKING:
    from simulator.forecast.timeline import MemoryCurve, TellingRank, Timeline

_COUNTER_SPANS = 1000
"""A memory counter has at most twice as many points; its name says so where it had more."""
_EVENTS_PER_WRITE = 4096


def write_trace(timeline: Timeline, memory: Iterable[MemoryCurve], file: BinaryIO) -> None:
    """Write the gzipped trace to *file*, piece by piece: the text of a large one never stands in memory whole."""
    # Without a name and a time in the gzip header, the same forecast gives the same bytes.
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=4, mtime=0) as packed:
        pending: list[str] = []
        for piece in _pieces(timeline, memory):
            pending.append(piece)
            if len(pending) == _EVENTS_PER_WRITE:
                packed.write("".join(pending).encode())
                pending.clear()
        packed.write("".join(pending).encode())


def _pieces(timeline: Timeline, memory: Iterable[MemoryCurve]) -> Iterator[str]:
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "distributedInfo": {"rank": _hta_rank(timeline)}}
    # With spaces: HTA finds the rank by the pattern `"rank":\s+(\d+)`.
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    streams = {name: number for number, name in enumerate(streams_in_order(timeline.stream), start=1)}
    comma = ""
    curves = list(memory)
    ranks = {rank.rank: rank for rank in (*(curve.rank for curve in curves), *timeline.ranks)}
    for event in _metadata(timeline, ranks.values(), streams):
        yield comma + event
        comma = ",\n"
    for event in _counters(curves):
        yield comma + event
    # The text that a task has in common on every rank is formatted once.
    common = list(_task_texts(timeline, streams))
    for column in range(len(timeline.ranks)):
        for event in _events(timeline, column, common):
            yield comma + event
    yield "]}\n"


def _hta_rank(timeline: Timeline) -> int:
    return timeline.ranks[0].rank if timeline.ranks else 0


def _metadata(timeline: Timeline, ranks: Iterable[TellingRank], streams: dict[str, int]) -> Iterator[str]:
    """Names and order of processes and threads; a rank known for its memory only has no threads."""
    told = [rank.rank for rank in timeline.ranks]
    for rank in ranks:
        order = told.index(rank.rank) if rank.rank in told else len(told)
        yield _dump(ph="M", pid=rank.rank, name="process_name", args={"name": f"rank {rank.rank} ({rank.label})"})
        yield _dump(ph="M", pid=rank.rank, name="process_sort_index", args={"sort_index": order})
        for stream, tid in streams.items() if rank.rank in told else ():
            yield _dump(ph="M", pid=rank.rank, tid=tid, name="thread_name", args={"name": stream})
            yield _dump(ph="M", pid=rank.rank, tid=tid, name="thread_sort_index", args={"sort_index": tid})


def _task_texts(timeline: Timeline, streams: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    """Of each task: its name and thread; its arguments but the bytes; its category."""
    quoted: dict[str, str] = {}

    def quote(text: str) -> str:
        if text not in quoted:
            quoted[text] = json.dumps(text)
        return quoted[text]

    columns = (timeline.name, timeline.stream, timeline.kind, timeline.phase)
    numbers = zip(timeline.layer.tolist(), timeline.micro_batch.tolist(), strict=True)
    for name, stream, kind, phase, (layer, micro_batch) in zip(*columns, numbers, strict=True):
        tid = streams[stream]
        host = stream == "host"
        arguments = f'"kind":{quote(kind)},"phase":{quote(phase)}'
        if not host:
            arguments = f'"stream":{tid},' + arguments
        if layer >= 0:
            arguments += f',"layer":{layer}'
        if micro_batch >= 0:
            arguments += f',"micro_batch":{micro_batch}'
        category = '"cat":"cpu_op",' if host else '"cat":"kernel",'
        yield f'"name":{quote(_dressed(name, stream, kind))},"tid":{tid}', arguments, category


def _dressed(name: str, stream: str, kind: str) -> str:
    nature = group_of(kind).nature
    if nature == "wire":
        return f"nccl:{name} Kernel"
    if nature == "copy":
        return f"Memcpy {'HtoD' if stream == 'copy_in' else 'DtoH'} {name}"
    return name


def _events(timeline: Timeline, column: int, common: list[tuple[str, str, str]]) -> Iterator[str]:
    pid = timeline.ranks[column].rank
    start = timeline.start_ns[:, column]
    # A quotient by 1000 prints as the shortest decimal, which is the exact nanosecond.
    start_us = (start / 1000).tolist()
    duration_us = ((timeline.end_ns[:, column] - start) / 1000).tolist()
    wire, causes = timeline.wire_bytes[:, column].tolist(), timeline.waited_for[:, column].tolist()
    for (head, arguments, category), ts, dur, sent, cause in zip(
        common, start_us, duration_us, wire, causes, strict=True
    ):
        seen = "" if column else category
        more = f',"wire_bytes":{sent:.0f}' if sent else ""
        more += f',"waited_for":{json.dumps(timeline.name[cause])}' if cause >= 0 else ""
        yield f'{{"ph":"X",{seen}{head},"pid":{pid},"ts":{ts},"dur":{dur},"args":{{{arguments}{more}}}}}'


def _counters(memory: Iterable[MemoryCurve]) -> Iterator[str]:
    """Bytes by kind over time; a curve with too many points keeps its peaks, and its name says what was kept."""
    for curve in memory:
        if not len(curve.time_ns):
            continue
        kinds = {kind: values for kind, values in curve.bytes_by_kind.items() if values.any()}
        kept = envelope(curve.time_ns, total_bytes(curve), _COUNTER_SPANS)
        name = f"{curve.tier} bytes"
        if len(kept) < len(curve.time_ns):
            name += f" ({len(kept)} of {len(curve.time_ns)} points)"
        time_us = (curve.time_ns[kept] / 1000).tolist()
        held = {kind: values[kept].tolist() for kind, values in kinds.items()}
        for i, ts in enumerate(time_us):
            yield _dump(
                ph="C", pid=curve.rank.rank, name=name, ts=ts, args={kind: round(v[i]) for kind, v in held.items()}
            )


def _dump(**event: object) -> str:
    return json.dumps(event, separators=(",", ":"))

import gzip
import io
import json
import re
from itertools import pairwise

import numpy as np
from report_sample import memory, step

from simulator.forecast.timeline import MemoryCurve, TellingRank, Timeline
from simulator.report.perfetto import write_trace

MEDIAN, HOTTEST = TellingRank(3, "median"), TellingRank(0, "hottest")
FOUR_TASKS = Timeline(
    ranks=(MEDIAN, HOTTEST),
    name=("launch", "qkv", "dispatch", "page"),
    stream=("host", "compute", "all_to_all", "copy_out"),
    kind=("launch", "gemm", "all_to_all", "copy_out"),
    phase=("forward", "forward", "forward", "backward"),
    layer=np.array([-1, 7, 7, 8]),
    micro_batch=np.array([-1, 0, 0, 1]),
    start_ns=np.array([[0, 0], [1_000, 1_001], [3_500, 4_250], [9_007_199_254_740, 5_000]]),
    end_ns=np.array([[500, 500], [3_500, 4_250], [8_000, 8_000], [9_007_199_254_741, 7_123]]),
    wire_bytes=np.array([[0, 0], [0, 0], [2.5e8, 3e8], [0, 0]], float),
    waited_for=np.array([[-1, -1], [0, -1], [-1, -1], [-1, -1]]),
)
CURVE = MemoryCurve(
    rank=HOTTEST,
    tier="hbm",
    capacity_bytes=100.0,
    time_ns=np.array([0, 1_500, 2_000]),
    bytes_by_kind={
        "parameters": np.array([60.0, 60.0, 60.0]),
        "logits": np.zeros(3),
        "workspace": np.array([0.0, 7, 0]),
    },
)


def trace_of(timeline, memory):
    file = io.BytesIO()
    write_trace(timeline, memory, file)
    return json.loads(gzip.decompress(file.getvalue()))


def events(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_tasks_become_events_with_nanosecond_times():
    trace = trace_of(FOUR_TASKS, ())
    first = [event for event in events(trace, "X") if event["pid"] == 3]
    assert first == [
        {
            "ph": "X", "cat": "cpu_op", "name": "launch", "tid": 4, "pid": 3, "ts": 0.0, "dur": 0.5,
            "args": {"kind": "launch", "phase": "forward"},
        },
        {
            "ph": "X", "cat": "kernel", "name": "qkv", "tid": 1, "pid": 3, "ts": 1.0, "dur": 2.5,
            "args": {
                "stream": 1, "kind": "gemm", "phase": "forward", "layer": 7, "micro_batch": 0, "waited_for": "launch",
            },
        },
        {
            "ph": "X", "cat": "kernel", "name": "nccl:dispatch Kernel", "tid": 2, "pid": 3, "ts": 3.5, "dur": 4.5,
            "args": {
                "stream": 2, "kind": "all_to_all", "phase": "forward", "layer": 7, "micro_batch": 0,
                "wire_bytes": 250000000,
            },
        },
        {
            "ph": "X", "cat": "kernel", "name": "Memcpy DtoH page", "tid": 3, "pid": 3, "ts": 9007199254.74,
            "dur": 0.001,
            "args": {"stream": 3, "kind": "copy_out", "phase": "backward", "layer": 8, "micro_batch": 1},
        },
    ]  # fmt: skip


def test_other_ranks_have_their_own_times_and_are_hidden_from_hta():
    second = [event for event in events(trace_of(FOUR_TASKS, ()), "X") if event["pid"] == 0]
    assert [(event["ts"], event["dur"]) for event in second] == [(0.0, 0.5), (1.001, 3.249), (4.25, 3.75), (5.0, 2.123)]
    assert second[2]["args"]["wire_bytes"] == 300000000
    assert not any("cat" in event for event in second)


def test_processes_are_ranks_and_threads_are_streams():
    named = [(e["pid"], e.get("tid"), e["name"], e["args"]) for e in events(trace_of(FOUR_TASKS, ()), "M")]
    assert (3, None, "process_name", {"name": "rank 3 (median)"}) in named
    assert (0, None, "process_name", {"name": "rank 0 (hottest)"}) in named
    threads = [(pid, tid, args["name"]) for pid, tid, name, args in named if name == "thread_name"]
    streams = ["compute", "all_to_all", "copy_out", "host"]
    assert threads == [(pid, tid, stream) for pid in (3, 0) for tid, stream in enumerate(streams, start=1)]


def test_memory_is_a_counter_of_the_kinds_that_hold_something():
    assert events(trace_of(FOUR_TASKS, (CURVE,)), "C") == [
        {"ph": "C", "pid": 0, "name": "hbm bytes", "ts": 0.0, "args": {"parameters": 60, "workspace": 0}},
        {"ph": "C", "pid": 0, "name": "hbm bytes", "ts": 1.5, "args": {"parameters": 60, "workspace": 7}},
        {"ph": "C", "pid": 0, "name": "hbm bytes", "ts": 2.0, "args": {"parameters": 60, "workspace": 0}},
    ]


def test_a_rank_known_for_its_memory_only_has_a_name_and_no_threads():
    alone = MemoryCurve(TellingRank(9, "highest peak"), "hbm", 100.0, CURVE.time_ns, CURVE.bytes_by_kind)
    named = [event for event in events(trace_of(FOUR_TASKS, (alone,)), "M") if event["pid"] == 9]
    assert [event["args"] for event in named] == [{"name": "rank 9 (highest peak)"}, {"sort_index": 2}]


def test_a_thinned_counter_says_so_and_keeps_its_peak():
    points = 50_000
    held = np.random.default_rng(0).uniform(0, 50, points)
    held[31_415] = 99.0
    curve = MemoryCurve(HOTTEST, "hbm", 100.0, np.arange(points) * 1000, {"workspace": held})
    counters = events(trace_of(FOUR_TASKS, (curve,)), "C")
    assert {event["name"] for event in counters} == {f"hbm bytes ({len(counters)} of 50000 points)"}
    assert len(counters) <= 2002
    assert [event["ts"] for event in counters if event["args"]["workspace"] == 99] == [31_415.0]


def test_the_file_tells_hta_its_rank_in_the_spelling_that_hta_looks_for():
    file = io.BytesIO()
    write_trace(FOUR_TASKS, (), file)
    text = gzip.decompress(file.getvalue()).decode()
    assert json.loads(text)["distributedInfo"] == {"rank": 3}
    assert re.search(r'"rank":\s+(\d+)', text)[1] == "3"


def test_events_of_a_stream_never_overlap():
    timeline = step(layers=4, micro_batches=2)
    trace = trace_of(timeline, memory(timeline))
    by_stream = {}
    for event in events(trace, "X"):
        by_stream.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(by_stream) == 12
    for spans in by_stream.values():
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))


def test_odd_names_survive():
    odd = 'say "hi"\\\n\u00e9'
    timeline = Timeline(
        (MEDIAN,),
        (odd,),
        ("compute",),
        ("gemm",),
        ("forward",),
        *[np.array([0])] * 2,
        *[np.array([[0]])] * 3,
        np.array([[-1]]),
    )
    assert [event["name"] for event in events(trace_of(timeline, ()), "X")] == [odd]


def test_the_same_forecast_gives_the_same_bytes():
    first, second = io.BytesIO(), io.BytesIO()
    write_trace(FOUR_TASKS, (CURVE,), first)
    write_trace(FOUR_TASKS, (CURVE,), second)
    assert first.getvalue() == second.getvalue()
    assert first.getvalue()[4:8] == bytes(4)

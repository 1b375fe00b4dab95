import numpy as np

from simulator.forecast.timeline import TellingRank, Timeline
from simulator.report.exposure import Exposure, exposures

# name, stream, start and end in ns on ranks 0 and 1; the last task is another stage's on rank 1.
TASKS = (
    ("a", "compute", (0, 10), (0, 10)),
    ("dispatch", "all_to_all", (10, 30), (5, 30)),
    ("b", "compute", (20, 40), (30, 40)),
    ("gather", "fsdp_gather", (0, 15), (12, 14)),
    ("send", "pp_send_forward", (40, 45), (-1, -1)),
)


def timeline() -> Timeline:
    names, streams, *times = zip(*TASKS, strict=True)
    start, end = (np.array([[rank[i] for rank in ranks] for ranks in zip(*times, strict=True)]) for i in (0, 1))
    nothing = np.full(len(TASKS), -1)
    return Timeline(
        ranks=(TellingRank(0, "median"), TellingRank(7, "hottest")),
        name=names,
        stream=streams,
        kind=("gemm",) * len(TASKS),
        phase=("forward",) * len(TASKS),
        layer=nothing,
        micro_batch=nothing,
        start_ns=start,
        end_ns=end,
        wire_bytes=np.zeros((len(TASKS), 2)),
        waited_for=np.full((len(TASKS), 2), -1),
    )


def test_time_beside_computation_is_hidden():
    # The dispatch lasts from 10 to 30, and b computes from 20 on; the gather from 0 to 15, and a computes to 10.
    assert exposures(timeline(), 0) == [
        Exposure("all_to_all", 10e-9, 10e-9),
        Exposure("pp_send_forward", 0.0, 5e-9),
        Exposure("fsdp_gather", 10e-9, 5e-9),
    ]


def test_each_rank_has_its_own_and_streams_that_it_does_not_use_are_left_out():
    assert exposures(timeline(), 1) == [
        Exposure("all_to_all", 5e-9, 20e-9),
        Exposure("fsdp_gather", 0.0, 2e-9),
    ]

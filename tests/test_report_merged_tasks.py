import numpy as np
from report_sample import step

from simulator.forecast.timeline import TellingRank, Timeline
from simulator.report.closeup import Window, closeups
from simulator.report.lanes import groups_of, lanes_of
from simulator.report.merged_tasks import merged

# Kind, start and end in us. Two short ones, a gap, a long one, three short ones of which the first is apart.
TASKS = (
    ("gemm", 0, 1),
    ("elementwise", 1, 3),
    ("gemm", 30, 60),
    ("gemm", 60, 62),
    ("elementwise", 80, 81),
    ("gemm", 82, 84),
)


def timeline() -> Timeline:
    kinds, start, end = zip(*TASKS, strict=True)
    number = np.full(len(TASKS), -1)
    return Timeline(
        ranks=(TellingRank(0, "median"),),
        name=tuple("abcdef"),
        stream=("compute",) * len(TASKS),
        kind=kinds,
        phase=("forward",) * len(TASKS),
        layer=number,
        micro_batch=number,
        start_ns=1000 * np.array(start)[:, None],
        end_ns=1000 * np.array(end)[:, None],
        wire_bytes=np.zeros((len(TASKS), 1)),
        waited_for=np.full((len(TASKS), 1), -1),
    )


def test_few_tasks_are_all_drawn():
    (bars,), limit_ns = merged(timeline(), lanes_of(timeline()), (), most=6)
    assert limit_ns == 0
    assert bars.task.tolist() == [0, 1, 2, 3, 4, 5]
    assert bars.tasks.tolist() == [1] * 6


def test_short_neighbours_become_one_bar_that_its_longest_task_stands_for():
    (bars,), limit_ns = merged(timeline(), lanes_of(timeline()), (), most=4)
    assert 2_000 < limit_ns < 16_000
    assert bars.task.tolist() == [1, 2, 3, 5]
    assert bars.tasks.tolist() == [2, 1, 1, 2]
    assert bars.start_ns.tolist() == [0, 30_000, 60_000, 80_000]
    assert bars.end_ns.tolist() == [3_000, 60_000, 62_000, 84_000]


def test_what_each_colour_takes_is_kept():
    (bars,), _ = merged(timeline(), lanes_of(timeline()), (), most=4)
    groups, _ = groups_of(timeline())
    gemm, elementwise = bars.busy_ns
    assert [group.label for group in groups] == ["matrix multiply", "element-wise"]
    assert gemm.tolist() == [1_000, 30_000, 2_000, 2_000]
    assert elementwise.tolist() == [2_000, 0, 0, 1_000]


def test_close_ups_are_whole():
    (bars,), _ = merged(timeline(), lanes_of(timeline()), [Window("end", 80_000, 84_000)], most=5)
    assert bars.task.tolist() == [1, 2, 3, 4, 5]


def test_no_time_is_lost_in_a_large_timeline():
    large = step(layers=20, micro_batches=4, pieces=4)
    lanes = lanes_of(large)
    found, limit_ns = merged(large, lanes, closeups(large), most=2_000)
    assert limit_ns > 0
    assert sum(len(bars.task) for bars in found) <= 2_000
    for bars, lane in zip(found, lanes, strict=True):
        length = large.end_ns[lane.tasks, lane.column] - large.start_ns[lane.tasks, lane.column]
        assert bars.busy_ns.sum() == length.sum()
        assert bars.tasks.sum() == np.count_nonzero(length)

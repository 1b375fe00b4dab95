from itertools import pairwise

import numpy as np
from engine_programs import STREAMS, Drawn, alone, clusters, drawn_programs, tasks_on
from hypothesis import given, settings

from simulator.engine.recording import Recording
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task, Vector
from simulator.parallel.folding import apart, fold

Cluster = tuple[Vector, dict[str, Vector]]


def run_apart(drawn: list[Drawn], cluster: Cluster) -> tuple[list[Task], Recording]:
    features, groups = cluster
    program = tasks_on(drawn, features, apart(groups, len(features)))
    return program, Simulation(Part(program, len(features)), apart=True).run()[0]


def same(one: Recording, other: Recording) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("issue_ns", "start_ns", "begin_ns", "end_ns")
    )


@settings(max_examples=100)
@given(drawn_programs(shared_links=False), clusters())
def test_without_competition_every_time_is_the_longest_path_to_it(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    assert same(recording, alone(program, len(cluster[0])))


@settings(max_examples=100)
@given(drawn_programs(), clusters())
def test_competition_only_ever_delays(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    fastest = alone(program, len(cluster[0]))
    assert (recording.end_ns >= fastest.end_ns).all()
    assert recording.step_ns >= fastest.step_ns
    for i, task in enumerate(program):
        assert (recording.end_ns[i] >= recording.begin_ns[i] + task.duration_ns).all()


@settings(max_examples=100)
@given(drawn_programs(), clusters())
def test_a_step_is_no_shorter_than_the_work_of_any_stream(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    for stream in STREAMS:
        numbers = [i for i, task in enumerate(program) if task.stream == stream]
        busy = sum((program[i].duration_ns for i in numbers), np.zeros(len(cluster[0]), np.int64))
        assert (recording.step_ns >= busy).all()
        for before, after in pairwise(numbers):
            assert (recording.start_ns[after] >= recording.end_ns[before]).all()


@settings(max_examples=100)
@given(drawn_programs(), clusters())
def test_one_class_for_all_ranks_gives_the_times_of_one_for_each(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    assert same(recording, Simulation(Part(program, len(cluster[0]))).run()[0])


@settings(max_examples=100)
@given(drawn_programs(), clusters())
def test_folded_ranks_take_the_times_of_those_that_they_stand_for(drawn: list[Drawn], cluster: Cluster) -> None:
    features, groups = cluster
    _, recording = run_apart(drawn, cluster)
    folding = fold(features[:, None], groups)
    folded = Simulation(Part(tasks_on(drawn, features, folding), folding.behaviours)).run()[0]
    for name in ("issue_ns", "start_ns", "begin_ns", "end_ns"):
        assert np.array_equal(getattr(folded, name)[:, folding.behaviour], getattr(recording, name))


@settings(max_examples=100)
@given(drawn_programs(shared_links=False), clusters())
def test_without_competition_faster_transfers_never_make_a_step_longer(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    for task in program:
        if task.collective is not None:
            task.duration_ns = task.duration_ns // 2
    assert (Simulation(Part(program, len(cluster[0]))).run()[0].end_ns <= recording.end_ns).all()


@settings(max_examples=50)
@given(drawn_programs(), clusters())
def test_the_same_program_gives_the_same_recording(drawn: list[Drawn], cluster: Cluster) -> None:
    program, recording = run_apart(drawn, cluster)
    again = Simulation(Part(program, len(cluster[0])), apart=True).run()[0]
    assert same(recording, again)

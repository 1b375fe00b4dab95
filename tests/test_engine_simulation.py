import numpy as np
import pytest

from simulator.engine.recording import Recording
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Collective, Task


def compute(duration: int | list[int], *, host: int = 0, deps: tuple[int, ...] = (), blocks: bool = False) -> Task:
    ns = duration if isinstance(duration, int) else np.array(duration)
    return Task("work", "compute", "gemm", ns, deps=deps, host_ns=host, blocks_host=blocks)


def transfer(
    stream: str, duration: int | list[int], groups: list[int], deps: tuple[int, ...] = (), **busy: float
) -> Task:
    ns = duration if isinstance(duration, int) else np.array(duration)
    return Task("move", stream, "all_gather", ns, deps=deps, collective=Collective("all", np.array(groups), busy))


def run(*program: Task, behaviours: int = 1) -> Recording:
    return Simulation(Part(program, behaviours)).run()[0]


def test_five_tasks_and_a_pencil() -> None:
    program = (
        compute(10, host=2),
        Task("gather", "net", "all_gather", 20, host_ns=1),
        compute(5, host=3, deps=(1,)),
        compute(4, host=10),
        Task("reduce", "net", "reduce_scatter", 6, host_ns=1, deps=(2,)),
    )
    recording = run(*program)
    assert recording.issue_ns[:, 0].tolist() == [2, 3, 6, 16, 17]
    # compute: 2-12, then the gather's end at 23, 23-28, 28-32; net: 3-23, then the second compute's end at 28.
    assert recording.start_ns[:, 0].tolist() == [2, 3, 23, 28, 28]
    assert recording.end_ns[:, 0].tolist() == [12, 23, 28, 32, 34]
    assert recording.step_ns == 34


def test_a_kernel_that_waits_for_another_stream_holds_up_those_after_it() -> None:
    gather = Task("gather", "net", "all_gather", 50)
    recording = run(
        compute(10, host=1), compute([2, 7], host=30), gather, compute(1, deps=(2,)), compute(3), behaviours=2
    )
    # 1-11, then launched at 31; the gather ends at 81.
    assert recording.start_ns.T.tolist() == [[1, 31, 31, 81, 82], [1, 31, 31, 81, 82]]
    assert recording.end_ns.T.tolist() == [[11, 33, 81, 82, 85], [11, 38, 81, 82, 85]]


def test_a_program_of_short_kernels_is_bound_by_their_launches() -> None:
    recording = run(*(compute(1, host=10) for _ in range(3)))
    assert recording.start_ns[:, 0].tolist() == [10, 20, 30]
    assert recording.step_ns == 31


def test_a_blocked_host_issues_nothing_until_the_task_is_done() -> None:
    recording = run(compute([100, 50], host=1, blocks=True), compute(5, host=1), behaviours=2)
    assert recording.issue_ns.tolist() == [[1, 1], [102, 52]]
    assert recording.end_ns.tolist() == [[101, 51], [107, 57]]


def test_streams_run_side_by_side_and_each_keeps_its_order() -> None:
    # The second task of "net" could start at once, and waits behind the first, which waits for compute.
    recording = run(compute(30), transfer("net", 10, [0], deps=(0,)), transfer("net", 10, [0]), compute(5))
    assert recording.start_ns[:, 0].tolist() == [0, 30, 40, 30]
    assert recording.end_ns[:, 0].tolist() == [30, 40, 50, 35]


def test_a_collective_waits_for_the_last_of_its_own_group_only() -> None:
    recording = run(compute([10, 30, 5, 7]), transfer("net", 20, [0, 0, 1, 1], deps=(0,)), behaviours=4)
    assert recording.start_ns[1].tolist() == [10, 30, 5, 7]
    assert recording.begin_ns[1].tolist() == [30, 30, 7, 7]
    assert recording.end_ns[1].tolist() == [50, 50, 27, 27]


def test_two_transfers_that_fill_one_link_take_twice_as_long() -> None:
    recording = run(transfer("a", 100, [0], nic=100), transfer("b", 100, [0], nic=100))
    assert recording.end_ns[:, 0].tolist() == [200, 200]


def test_transfers_on_different_links_do_not_meet() -> None:
    recording = run(transfer("a", 100, [0], nic=100), transfer("b", 100, [0], nvlink=100))
    assert recording.end_ns[:, 0].tolist() == [100, 100]


def test_two_transfers_that_need_half_a_link_each_do_not_slow_each_other() -> None:
    recording = run(transfer("a", 100, [0], nic=50), transfer("b", 100, [0], nic=50))
    assert recording.end_ns[:, 0].tolist() == [100, 100]


def test_a_transfer_that_needs_a_link_whole_beside_one_that_needs_half_of_it() -> None:
    # Both at share x: x + x / 2 = 1, so x = 2/3 and both take 100 / (2/3) = 150.
    recording = run(transfer("a", 100, [0], nic=100), transfer("b", 100, [0], nic=50))
    assert recording.end_ns[:, 0].tolist() == [150, 150]


def test_a_transfer_joined_half_way_by_another() -> None:
    # Alone until 50, then both at half speed: the first has 50 left and ends at 150. The second has done 50 by then
    # and does the other 50 alone.
    recording = run(compute(50), transfer("a", 100, [0], nic=100), transfer("b", 100, [0], deps=(0,), nic=100))
    assert recording.begin_ns[1:, 0].tolist() == [0, 50]
    assert recording.end_ns[1:, 0].tolist() == [150, 200]


def test_competition_stretches_every_group_of_a_wave_in_proportion() -> None:
    # The wave of "a" lasts 100 alone and 200 beside "b": twice as long, so its short group takes 2 x 50.
    recording = run(transfer("a", [100, 50], [0, 1], nic=100), transfer("b", [100, 100], [0, 1], nic=100), behaviours=2)
    assert recording.end_ns.tolist() == [[200, 100], [200, 200]]


def test_a_wave_competes_from_the_moment_its_last_group_is_complete() -> None:
    # The early group of "a" begins at 0 and the late one at 100; on the links the wave lies at 100 to 200, after "b".
    recording = run(
        compute([0, 100]),
        transfer("a", 100, [0, 1], deps=(0,), nic=100),
        transfer("b", 100, [0, 1], nic=100),
        behaviours=2,
    )
    assert recording.begin_ns[1].tolist() == [0, 100]
    assert recording.end_ns[1:].tolist() == [[100, 200], [100, 100]]


def test_a_faster_transfer_can_make_the_step_longer_where_links_are_shared() -> None:
    # The long way is "b" and the compute of 200 behind it. With 100 ns of "a", "late" begins when "b" is done. With
    # 50, it takes half of the link from 50 on: "b" ends at 150, and all that waits for it is 50 later.
    def step_ns(first: int) -> int:
        return run(
            transfer("a", first, [0]),
            transfer("b", 100, [0], nic=100),
            transfer("a", 100, [0], nic=100),
            compute(200, deps=(1,)),
        ).step_ns

    assert (step_ns(100), step_ns(50)) == (300, 350)


def test_a_collective_of_no_duration_passes_at_once() -> None:
    assert run(transfer("net", 0, [0], nic=0), transfer("net", 7, [0])).step_ns == 7


def test_an_empty_program_takes_no_time() -> None:
    assert Simulation(Part([], 3)).run()[0].step_ns == 0


@pytest.mark.parametrize("apart", [False, True])
def test_a_program_that_waits_for_itself_raises_and_names_the_task(apart: bool) -> None:
    chain = [Task("first", "compute", "gemm", 1, deps=(1,)), Task("second", "compute", "gemm", 1)]
    with pytest.raises(RuntimeError, match="deadlock: task 0, 'first', never ran"):
        Simulation(Part(chain, 2), apart=apart).run()


def test_a_host_that_waits_for_what_it_has_not_issued_raises() -> None:
    stuck = Task("stuck", "compute", "gemm", 1, deps=(1,), blocks_host=True)
    with pytest.raises(RuntimeError, match="task 0, 'stuck', never ran"):
        run(stuck, Task("unissued", "net", "copy", 1))


def test_progress_is_told_while_it_runs() -> None:
    heard: list[float] = []
    half = [compute(1)] * 511
    Simulation(Part([*half, compute(1, blocks=True), *half, compute(1)], 1)).run(progress=heard.append)
    assert heard == [0.5, 1.0]


def test_events_do_not_grow_with_the_ranks_of_a_class() -> None:
    def program(ranks: int) -> list[Task]:
        return [compute(1), *(transfer("net", 5, [0] * ranks, nic=5) for _ in range(10))]

    few, many, apart = (
        Simulation(Part(program(8), 8)),
        Simulation(Part(program(800), 800)),
        Simulation(Part(program(8), 8), apart=True),
    )
    for simulation in (few, many, apart):
        simulation.run()
    assert 20 <= few.events == many.events <= 50
    assert apart.events > 2 * few.events


def test_a_send_meets_its_receive_in_another_part() -> None:
    def meeting(stream: str, ns: int) -> Task:
        groups = np.array([0, 1])
        collective = Collective("pp", groups, {"nic": ns}, meeting="activation 0", parts=(0, 1))
        return Task("meet", stream, "send", ns, deps=(0,), collective=collective)

    sender = [Task("work", "compute", "gemm", np.array([10, 30])), meeting("send", 7)]
    receiver = [compute(20), meeting("receive", 7), compute(5, deps=(1,))]
    for apart in (False, True):
        first, second = Simulation(Part(sender, 2), Part(receiver, 2), apart=apart).run()
        assert first.end_ns[1].tolist() == second.end_ns[1].tolist() == [27, 37]
        assert second.end_ns[2].tolist() == [32, 42]


def test_parts_have_links_of_their_own() -> None:
    busy = transfer("net", 100, [0], nic=100)
    for recording in Simulation(Part([busy], 1), Part([busy], 1)).run():
        assert recording.end_ns[0].tolist() == [100]

import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.program.stage import StageProgram

ELEMENTS = 71_312_384 / 16
ONE_SHARD = 16_779_264 / 16
"""Elements of a layer of the small dense model that one of 16 ranks has."""
OFFLOADED = "training.offload.parameters=true"
DEEPSPEED = "training.offload.optimizer=1"


def moved(program: StageProgram, kind: str, name: str) -> list[float]:
    tasks = [task for task in program.tasks if task.kind == kind and task.name.startswith(name)]
    return [float(task.collective.wire_bytes) for task in tasks]


def test_shards_come_in_before_each_gather_in_their_own_format(small: Small) -> None:
    program = lower(small("dense", OFFLOADED))
    came = moved(program, "copy_in", "shards layer 2")
    # Forward and backward.
    assert came == [pytest.approx(4 * ONE_SHARD)] * 2
    copies = {i: task.name.split()[1:3] for i, task in enumerate(program.tasks) if task.name.startswith("shards layer")}
    gathers = [task for task in program.tasks if task.name.startswith("all-gather layer")]
    assert len(gathers) == len(copies)
    for gather in gathers:
        assert [copies[dep] for dep in gather.deps if dep in copies] == [gather.name.split()[1:]]


def test_gradients_go_out_behind_their_reduction_and_are_waited_for_at_the_end(small: Small) -> None:
    program = lower(small("dense", OFFLOADED))
    assert sum(moved(program, "copy_out", "gradient")) == pytest.approx(4 * ELEMENTS, rel=1e-3)
    (wait,) = (i for i, task in enumerate(program.tasks) if task.name == "synchronize" and task.phase == "backward")
    assert program.tasks[wait].blocks_host
    last = max(i for i, task in enumerate(program.tasks) if task.kind == "copy_out")
    assert last in program.tasks[wait].deps


def test_nothing_stays_on_the_card_and_all_of_it_on_the_host(small: Small) -> None:
    program = lower(small("dense", OFFLOADED))
    on_card = {a.kind for a in (*program.resident, *program.born) if a.tier == "hbm"}
    assert on_card == {"workspace"}
    held = account(program.tasks, [*program.resident, *program.born], 1)["ddr"].breakdown(0)
    assert held["optimizer"] == pytest.approx(8 * ELEMENTS, rel=1e-3)
    for kind in ("parameters", "gradients"):
        assert 4 * ELEMENTS <= held[kind] < 8 * ELEMENTS


def test_later_micro_batches_are_added_by_the_cores(small: Small) -> None:
    once, twice = (lower(small("dense", OFFLOADED), count) for count in (1, 2))
    assert moved(once, "cpu_pass", "add gradients") == []
    assert sum(moved(twice, "cpu_pass", "add gradients")) == pytest.approx(12 * ELEMENTS, rel=1e-3)


def test_gradients_to_be_added_are_where_one_thread_pinned_them(small: Small) -> None:
    on_two = (
        "cluster.node=dgx-a100-40g",
        "cluster.fabric=single-node",
        "cluster.accelerators=2",
        "parallel.dp_shard=2",
    )
    program = lower(small("dense", "training.offload={parameters: true, threads: 32}", *on_two), 2)
    (task, *_) = (task for task in program.tasks if task.name == "add gradients on cpu")
    # 410 GB/s x 0.8 / 8 domains.
    assert int(task.duration_ns[0]) == pytest.approx(float(task.collective.wire_bytes) / 41e9 * 1e9, rel=1e-3)


def test_a_lone_card_waits_for_its_shards_instead_of_a_gather(small: Small) -> None:
    alone = ("cluster.accelerators=1", "parallel.dp_shard=1")
    program = lower(small("dense", OFFLOADED, *alone))
    assert not any(task.kind == "all_gather" for task in program.tasks)
    shards = {i for i, task in enumerate(program.tasks) if task.name.startswith("shards layer")}
    outs = [task for task in program.tasks if task.name.startswith("copy-out layer")]
    assert len(outs) == len(shards) == 8
    assert all(shards & set(task.deps) for task in outs)


def test_deepspeed_keeps_bf16_shards_and_sends_gradients_out_twice(small: Small) -> None:
    program = lower(small("dense", DEEPSPEED))
    parameters = sum(float(a.bytes) for a in program.resident if a.kind == "parameters")
    assert parameters == pytest.approx(2 * ELEMENTS, rel=1e-3)
    assert sum(moved(program, "copy_out", "gradient")) == pytest.approx((2 + 4) * ELEMENTS, rel=1e-3)
    assert sum(moved(program, "copy_in", "gradient")) == pytest.approx(2 * ELEMENTS, rel=1e-3)
    assert moved(program, "copy_in", "shards") == []
    assert not any(a.kind == "gradients" and a.key.startswith("grad.") for t in program.tasks for a in t.allocates)


def test_deepspeed_widens_the_gradients_of_the_last_micro_batch_alone(small: Small) -> None:
    program = lower(small("dense", DEEPSPEED), 3)
    assert sum(moved(program, "copy_out", "gradient")) == pytest.approx((3 * 2 + 4) * ELEMENTS, rel=1e-3)
    assert sum(moved(program, "copy_in", "gradient")) == pytest.approx(3 * 2 * ELEMENTS, rel=1e-3)


@pytest.mark.parametrize("kind", ["dense", "mixture", "latent", "predicting", "seeing"])
@pytest.mark.parametrize("way", [OFFLOADED, DEEPSPEED, "training.zero=1 training.offload.optimizer=0.3"])
def test_every_program_gives_back_what_it_takes(small: Small, kind: str, way: str) -> None:
    program = lower(small(kind, *way.split()), 2)
    assert all(abs(ledger.left_bytes).max() == 0 for ledger in account(program.tasks, (), 1).values())

"""ZenFlow beside ZeRO-2 on sixteen cards, by hand: bytes of what is chosen, of what is added up and of what lags."""

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.simulate import simulate
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

PARAMETERS = 71_312_384
OWNED = PARAMETERS / 16
CHOSEN = 0.1 * PARAMETERS
SETTINGS = ("training.zero=2", "training.global_batch_sequences=64")
CORE = 18.6e9


def zenflow(small: Small, *, beside: bool = True, threads: int = 1) -> StageProgram:
    chosen = f"zenflow: {{topk_ratio: 0.1, overlap_step: {str(beside).lower()}}}"
    return lower(small("dense", *SETTINGS, f"training.offload={{optimizer: 1, threads: {threads}, {chosen}}}"), 4)


def named(program: StageProgram, name: str) -> list[Task]:
    return [task for task in program.tasks if task.name == name]


def sent(tasks: list[Task]) -> float:
    return sum(float(np.max(task.collective.wire_bytes)) for task in tasks)  # type: ignore[union-attr]


def test_chosen_columns_are_broadcast_and_updated_in_every_micro_batch(small: Small) -> None:
    program = zenflow(small)
    assert sent(named(program, "broadcast columns")) == pytest.approx(4 * 2 * CHOSEN)
    assert [task.micro_batch for task in named(program, "update columns")] == [0, 1, 2, -1]
    assert [task.phase for task in named(program, "update columns")] == ["backward"] * 3 + ["optimizer"]


def test_the_last_update_of_chosen_columns_comes_after_the_host_s_weights(small: Small) -> None:
    order = [task.name for task in zenflow(small).tasks]
    last = len(order) - 1 - order[::-1].index("update columns")
    assert order.index("parameters in") < order.index("gather parameters") < last


def test_gradients_of_several_micro_batches_are_added_on_the_card(small: Small) -> None:
    program = lower(small("dense", *SETTINGS, "training.offload.optimizer=1"), 4)
    assert sent(named(program, "gradients so far out")) == pytest.approx(4 * 2 * OWNED)
    assert sent(named(program, "gradients so far in")) == pytest.approx(3 * 2 * OWNED)
    assert sent(named(program, "gradients out")) == pytest.approx(4 * OWNED)
    assert {task.micro_batch for task in named(program, "gradients out")} == {3}


def test_the_sums_of_micro_batches_lie_in_pinned_buffers_of_whole_tensors(small: Small) -> None:
    program = lower(small("latent", *SETTINGS, "training.offload.optimizer=1"), 4)
    made = {item.key: float(item.bytes) for task in program.tasks for item in task.allocates if "gradient." in item.key}
    sums = [item for task in program.tasks for item in task.allocates if item.key.startswith("zero2.sums on host")]
    assert {(item.tier, item.kind) for item in sums} == {("ddr", "gradients")}
    # Four layers have 1024 x 320 elements that take 1 MiB for 655,360 bytes, and 1024 x 1536 that take 4 MiB for 3.
    rounded = sum(made.values()) + 4 * (2**20 - 655_360 + 2**20)
    assert sum(float(item.bytes) for item in sums) == pytest.approx(rounded / 16)


def test_one_micro_batch_sends_its_gradients_once(small: Small) -> None:
    program = lower(small("dense", "training.zero=2", "training.offload.optimizer=1"), 1)
    assert named(program, "gradients so far out") == []
    assert not any(item.key.startswith("zero2.sums") for task in program.tasks for item in task.allocates)


def test_cores_update_by_the_last_step_s_gradients_from_the_start(small: Small) -> None:
    first, *_ = zenflow(small).tasks
    assert (first.name, first.deps, first.blocks_host) == ("cpu AdamW", (), False)
    # AdamW's 28 bytes, a clone of the weights written and read again for the other process, 16.
    assert int(first.duration_ns[0]) == pytest.approx(44 * OWNED / CORE * 1e9, rel=1e-6)


def test_what_both_processes_share_is_not_pinned(small: Small) -> None:
    times = {}
    for beside in (True, False):
        program = zenflow(small, beside=beside)
        (copy,) = named(program, "parameters in")
        times[beside] = int(copy.duration_ns[0])
    assert times[True] == pytest.approx(4 * OWNED / 6.6 + 6000, rel=1e-3)
    assert times[False] == pytest.approx(4 * OWNED / 55.43 + 6000, rel=1e-3)


def test_the_host_holds_gradients_moments_and_weights_twice(small: Small) -> None:
    program = zenflow(small)
    held = {item.key: float(item.bytes) for item in (*program.resident, *program.born) if item.tier == "ddr"}
    # The largest tensor has 4 Mi elements.
    assert held == {
        "resident.master weights on host": pytest.approx(8 * OWNED),
        "resident.gradients on host": pytest.approx(8 * OWNED),
        "resident.moments on host": pytest.approx(16 * OWNED),
        "resident.buffer of a gradient on host": 2 * 4 * 2**20,
    }


def test_the_card_holds_moments_of_chosen_columns_and_nothing_is_left(small: Small) -> None:
    program = zenflow(small)
    (moments,) = (item for item in program.born if item.tier == "hbm")
    assert moments.bytes == pytest.approx(2 * 2 * CHOSEN)
    ledgers = account(program.tasks, [*program.resident, *program.born], 1)
    assert all(abs(ledger.left_bytes).max() < 1 for ledger in ledgers.values())


def test_the_card_waits_for_the_later_of_passes_and_cores(small: Small) -> None:
    settings = (*SETTINGS, "training.offload={optimizer: 1, zenflow: {}}")
    step = simulate(TrainingStep(assemble_job(*small("dense", *settings))), 4, behaviours=1)
    names, ends = [task.name for task in step.programs[0].tasks], step.recordings[0].end_ns[:, 0]
    cores, waited, copied = (names.index(name) for name in ("cpu AdamW", "wait for cores", "parameters in"))
    assert ends[waited] == max(ends[cores], ends[:waited].max())
    assert step.recordings[0].start_ns[copied, 0] >= ends[waited]


def test_a_longer_interval_is_simulated_whole(small: Small) -> None:
    settings = (
        "training.zero=2",
        "training.global_batch_sequences=128",
        "training.offload={optimizer: 1, zenflow: {}}",
    )
    lowering = TrainingStep(assemble_job(*small("dense", *settings)))
    assert simulate(lowering, 8, behaviours=1).simulated == 8

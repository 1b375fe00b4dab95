"""A forward and a backward pass in turn: what order their tasks come in, and what that hides."""

import numpy as np
import pytest
from small_jobs import Small

from simulator.engine.ledger import account
from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Collective, Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.program.emitter import Emitter
from simulator.program.schedules import schedules
from simulator.program.training_step import TrainingStep
from simulator.program.weaving import woven

WIDE = (
    "cluster={node: hgx-h800, fabric: rail-fat-tree-400g, accelerators: 16}",
    "parallel={dp_shard: 16, ep: 16}",
    "training.sequence_length=8192",
    "training.micro_batch_sequences=4",
    "training.global_batch_sequences=512",
    "training.zero=1",
)
OVERLAP = "training.overlap_exchanges=true"


def one_pass(name: str, first: int, *works_ns: int) -> list[Task]:
    """Compute of so long each, and an exchange of 100 ns between one and the next."""
    tasks: list[Task] = []
    for number, work_ns in enumerate(works_ns):
        deps = (first + len(tasks) - 1,) if number else ()
        tasks.append(Task(f"{name}{number}", "compute", "gemm", work_ns, deps=deps))
        if number + 1 < len(works_ns):
            exchange = Collective("ep", np.array([0]))
            before = (first + len(tasks) - 1,)
            tasks.append(Task(f"{name}{number}x", "all_to_all", "all_to_all", 100, deps=before, collective=exchange))
    return tasks


def test_stretches_between_exchanges_come_in_turn_the_second_pass_first() -> None:
    tasks = [*one_pass("f", 0, 1, 1, 1), *one_pass("b", 5, 1, 1)]
    names = [tasks[position].name for position in woven(tasks, 0, 5)]
    assert names == ["b0", "b0x", "f0", "f0x", "b1", "f1", "f1x", "f2"]


def test_exchanges_run_beside_the_other_pass() -> None:
    emitter = Emitter(0)
    emitter.tasks = [*one_pass("f", 0, 150, 150, 150), *one_pass("b", 5, 150, 150, 150)]
    (apart,) = Simulation(Part(emitter.tasks, 1)).run()
    emitter.reorder(0, woven(emitter.tasks, 0, 5))
    (together,) = Simulation(Part(emitter.tasks, 1)).run()
    # Each pass alone: three stretches and two exchanges; together only work is left.
    assert (apart.step_ns, together.step_ns) == (2 * (3 * 150 + 2 * 100), 6 * 150)


def test_pairs_are_of_different_micro_batches_and_one_forward_pass_comes_sooner() -> None:
    def spelled(stage: int, stages: int, micro_batches: int, chunks: int) -> str:
        passes = schedules()["combined"](stage, stages, micro_batches, chunks)
        return " ".join(f"{p.direction[0].upper()}{p.micro_batch}{chr(39) * p.chunk}{'+' * p.paired}" for p in passes)

    assert spelled(0, 1, 3, 1) == "F0 F1+ B0 F2+ B1 B2"
    assert spelled(1, 2, 2, 2) == "F0 F1 F0' F1'+ B0' B1' B0 B1"
    # Five passes fill the first stage, which has four: the last of them cannot wait for a backward pass beside it.
    assert spelled(0, 2, 2, 2) == "F0 F1 F0' F1' B0' B1' B0 B1"
    assert spelled(0, 1, 1, 1) == "F0 B0"


def test_what_is_hidden_and_what_it_holds(small: Small) -> None:
    plain, over, late = (
        forecast(*small("latent", *WIDE, *more)).summary
        for more in ((), (OVERLAP,), (OVERLAP, "training.delay_weight_gradients=true"))
    )
    exposed, hidden = (summary["time"]["exposed_all_to_all_s"] for summary in (plain, over))
    assert hidden < 0.3 * exposed
    # Compute beside transfers is slower, by less than what is hidden.
    gained = plain["step_time_s"]["p50"] - over["step_time_s"]["p50"]
    assert 0.5 * (exposed - hidden) < gained < exposed - hidden
    assert late["step_time_s"]["p50"] <= over["step_time_s"]["p50"]
    # Activations of one micro-batch come as those of the other go, but for the layers at both ends.
    saved = [s["memory"]["hbm"]["breakdown"]["saved activations"] for s in (plain, over)]
    assert 1.2 < saved[1] / saved[0] < 2


@pytest.mark.parametrize("later", ["false", "true"])
def test_nothing_is_left_held(small: Small, later: str) -> None:
    job = assemble_job(*small("latent", *WIDE, OVERLAP, f"training.delay_weight_gradients={later}"))
    (program,) = TrainingStep(job).programs(4)
    ledger = account(program.tasks, program.resident, job.folding.behaviours)["hbm"]
    assert np.abs(ledger.left_bytes).max() < 1


@pytest.mark.parametrize("later", ["false", "true"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("split", ["{dp_shard: 16, ep: 16}", "{dp_shard: 8, ep: 8, pp: 2, virtual_pipeline: 2}"])
def test_swapped_tensors_come_back_behind_their_own_copies(
    small: Small, split: str, recompute: str, later: str
) -> None:
    swap = "training.swap={operators: {experts_fc1: 1.0, attention: 0.5}, prefetch: 2}"
    more = (f"parallel={split}", f"training.recompute={recompute}", f"training.delay_weight_gradients={later}", swap)
    job = assemble_job(*small("latent", *WIDE, OVERLAP, *more))
    for program in TrainingStep(job).programs(4):
        ledgers = account(program.tasks, program.resident, job.folding.behaviours)
        assert all(np.abs(ledger.left_bytes).max() < 1 for ledger in ledgers.values())
        back = [task for task in program.tasks if task.stream == "copy_in"]
        for task in back:
            out = [program.tasks[dep] for dep in task.deps if program.tasks[dep].stream == "copy_out"]
            assert [item.key for one in out for item in one.allocates] == list(task.releases)
        assert back


def test_a_woven_backward_pass_begins_with_what_has_not_left(small: Small) -> None:
    swap = "training.swap.operators={experts_fc1: 1.0}"
    (program,) = TrainingStep(assemble_job(*small("mixture", *WIDE, OVERLAP, swap))).programs(4)
    out, back = (
        [(task.micro_batch, task.layer) for task in program.tasks if task.stream == stream]
        for stream in ("copy_out", "copy_in")
    )
    assert sorted(out) == [(micro_batch, layer) for micro_batch in range(4) for layer in range(4)]
    # Each is sent for a layer ahead, and that of the last layer is still there.
    assert sorted(back) == [(micro_batch, layer) for micro_batch in range(4) for layer in (1, 2, 3)]


def test_no_task_of_a_pair_waits_for_a_later_one(small: Small) -> None:
    # With tp the loss ends in transfers: the backward pass beside it, which comes first, does not wait for them.
    more = ("parallel={dp_shard: 8, ep: 8, tp: 2}", "training.zero=1", "training.global_batch_sequences=32", OVERLAP)
    (program,) = TrainingStep(assemble_job(*small("mixture", *more))).programs(4)
    assert all(dep < number for number, task in enumerate(program.tasks) for dep in task.deps)


def test_what_has_no_pairs_is_refused(small: Small) -> None:
    def told(*overrides: str) -> list[str]:
        with pytest.raises(Refused) as caught:
            assemble_job(*small("mixture", *overrides))
        return list(caught.value.messages)

    assert told("parallel={pp: 2, dp_shard: 8, ep: 8}", "training.zero=1", OVERLAP) == [
        "training.overlap_exchanges: found true, and pairs of unlike micro-batches need virtual stages; allowed: "
        "virtual_pipeline above 1"
    ]
    assert told("training.delay_weight_gradients=true") == [
        "training.delay_weight_gradients: found true without overlap_exchanges, whose exchanges they run beside"
    ]
    assert told(OVERLAP) == [
        "training.overlap_exchanges: found true, but ep is 1 and nothing is exchanged; allowed: false, or ep above 1",
        "training.overlap_exchanges: found true, which is simulated for parameters that ranks hold whole; allowed: "
        "zero 1",
        "training.overlap_exchanges: found true, but a step of 16 sequences is one micro-batch, which has no pair; "
        "nearest: 32",
    ]


def test_exchanges_are_hidden_where_ranks_share_experts_and_what_brings_their_rows_together_is_not(
    small: Small,
) -> None:
    split = "parallel={dp_shard: 16, ep: 8, etp: 2}"
    plain, over = (forecast(*small("mixture", *WIDE, split, *more)).summary["time"] for more in ((), (OVERLAP,)))
    assert over["exposed_all_to_all_s"] < 0.3 * plain["exposed_all_to_all_s"]
    assert over["exposed_tp_s"] > 0.9 * plain["exposed_tp_s"]

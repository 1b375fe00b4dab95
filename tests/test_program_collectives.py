from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.simulation import Part, Simulation
from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.model.operator import Collective
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.program.layout import lay_out
from simulator.program.network import Network
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

TOKENS, HIDDEN, BYTES = 2048, 1024, 2
MATRICES = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 4096
TP = ("parallel={tp: 2, dp_shard: 8}",)
CP = ("parallel={cp: 2, dp_shard: 8}",)
EXPERTS = ("parallel={tp: 2, dp_shard: 8, ep: 4, etp: 2}", "routing.synthetic.sigma=0")


def moves(program: StageProgram, communicator: str, phase: str, layer: int = 1) -> list[Task]:
    return [
        task
        for task in program.tasks
        if task.collective is not None
        and (task.collective.communicator, task.phase, task.layer) == (communicator, phase, layer)
    ]


def sent(task: Task) -> float:
    assert task.collective is not None
    return float(np.max(task.collective.wire_bytes))


def ring(small: Small, phase: str) -> list[Task]:
    tasks = lower(small("dense", "parallel={cp: 4, dp_shard: 4}", "training.context_parallel=ring")).tasks
    return [task for task in tasks if (task.name, task.phase, task.layer) == ("ring_attention", phase, 1)]


def test_a_ring_sends_keys_and_values_beside_each_step_but_the_last(small: Small) -> None:
    keys = 2 * BYTES * TOKENS // 4 * HIDDEN
    forward, backward = ring(small, "forward"), ring(small, "backward")
    assert [task.stream for task in forward] == ["cp", "compute"] * 3 + ["compute"]
    assert [sent(task) for task in forward if task.stream == "cp"] == [keys] * 3
    assert [task.stream for task in backward] == ["cp", "compute"] * 4 + ["compute"]
    assert [sent(task) for task in backward if task.stream == "cp"] == [keys, 2 * keys, 2 * keys, keys]


def test_hops_of_a_ring_run_beside_its_steps(small: Small) -> None:
    long = ("training.context_parallel=ring", "training.sequence_length=8192", "training.execution=compiled")
    read = small("dense", "parallel={cp: 4, dp_shard: 4}", *long)
    job = assemble_job(*read)
    tasks = TrainingStep(job).programs(1)[0].tasks
    (recording,) = Simulation(Part(tasks, job.folding.behaviours)).run()
    order = [i for i, task in enumerate(tasks) if (task.name, task.phase) == ("ring_attention", "forward")]
    hop, step, after = order[0], order[1], order[3]
    assert (recording.begin_ns[hop] <= recording.begin_ns[step]).all()
    assert (recording.begin_ns[step] < recording.end_ns[hop]).all()
    assert (recording.begin_ns[after] >= np.maximum(recording.end_ns[hop], recording.end_ns[step])).all()


def operations(tasks: list[Task]) -> Counter[str]:
    return Counter(task.kind for task in tasks)


def test_a_dense_layer_gathers_twice_and_scatters_twice(small: Small) -> None:
    program = lower(small("dense", *TP))
    forward = moves(program, "tp", "forward")
    assert [task.kind for task in forward] == ["all_gather", "reduce_scatter"] * 2
    # A gathered activation is tokens x width in bf16, half of which comes from the other rank.
    assert {sent(task) for task in forward} == {TOKENS * HIDDEN * BYTES / 2}
    assert {task.stream for task in forward} == {"tp"}


def test_backward_gathers_inputs_again_for_the_gradients_of_weights(small: Small) -> None:
    backward = moves(lower(small("dense", *TP)), "tp", "backward")
    # For each part: the gradient of its output, its input again, and the sum of the input's gradients.
    assert operations(backward) == {"all_gather": 4, "reduce_scatter": 2}
    frozen = lower(small("dense", *TP, "training.lora={targets: [attention]}"))
    assert operations(moves(frozen, "tp", "backward")) == {"all_gather": 3, "reduce_scatter": 2}


def test_the_next_kernel_waits_for_the_gather_and_the_gather_for_the_norm(small: Small) -> None:
    tasks = lower(small("dense", *TP)).tasks
    gather = next(i for i, task in enumerate(tasks) if task.layer == 1 and task.name == "tp_gather")
    assert (tasks[gather - 1].name, tasks[gather].deps) == ("tp_gather ready", (gather - 1,))
    after = next(task for task in tasks[gather + 1 :] if task.stream == "compute")
    assert gather in after.deps


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_matrices_are_split_and_norms_are_copied(small: Small, tp: int) -> None:
    job = assemble_job(*small("dense", f"parallel={{tp: {tp}, dp_shard: {16 // tp}}}"))
    layout = lay_out(job, 0)
    assert layout.layers[0].groups[0].elements == MATRICES / tp + 2 * HIDDEN
    assert layout.root.groups[0].elements == 2 * 2048 * HIDDEN / tp + HIDDEN
    assert layout.copied_elements == (4 * 2 * HIDDEN if tp > 1 else 0)


def test_without_sequence_parallelism_every_rank_has_the_whole_gradient_of_a_copy(small: Small) -> None:
    read = small("dense", *TP, "training.sequence_parallel=false")
    assert lay_out(assemble_job(*read), 0).copied_elements == 0
    program = lower(read)
    for phase in ("forward", "backward"):
        assert operations(moves(program, "tp", phase)) == {"all_reduce": 2}


def test_gradients_of_copies_are_summed_once_a_step(small: Small) -> None:
    program = lower(small("dense", *TP), micro_batches=3)
    (summed,) = [task for task in program.tasks if task.name == "copied gradients"]
    assert (summed.phase, summed.kind) == ("optimizer", "all_reduce")
    # Two ranks pass on half of 4 layers x 2 norms in fp32, twice.
    assert sent(summed) == 2 * (4 * 4 * 2 * HIDDEN) / 2
    update = next(task for task in program.tasks if task.name == "optimizer")
    assert program.tasks.index(summed) in update.deps


def test_context_parallel_ranks_gather_keys_and_values(small: Small) -> None:
    program = lower(small("dense", *CP))
    (forward,) = moves(program, "cp", "forward")
    # Keys and values of 8 heads of 128 for all tokens of the sequence; half of them from the other rank.
    assert (forward.kind, sent(forward)) == ("all_gather", TOKENS * 2 * 8 * 128 * BYTES / 2)
    backward = moves(program, "cp", "backward")
    assert operations(backward) == {"all_gather": 1, "reduce_scatter": 1}
    assert {sent(task) for task in backward} == {sent(forward)}


def test_parameters_are_sharded_over_cp_as_well(small: Small) -> None:
    program = lower(small("dense", *CP))
    gather = next(task for task in program.tasks if task.name == "all-gather layer 2")
    assert sent(gather) == 2 * (MATRICES + 2 * HIDDEN) * 15 / 16


def test_etp_ranks_share_an_expert_and_bring_their_rows_together(small: Small) -> None:
    job = assemble_job(*small("mixture", *EXPERTS))
    experts = lay_out(job, 0).layers[0].groups[1]
    # 16 experts over ep 4, half of the intermediate width each; 16 ranks / (ep 4 x etp 2) shard them.
    assert (experts.elements, experts.ranks) == (4 * 3 * HIDDEN * 512 / 2, 2)
    program = lower(small("mixture", *EXPERTS))
    # Each rank sends half of the tokens that two tp ranks have in common, to two experts each.
    rows = TOKENS / 2 * 2
    gather, scatter = moves(program, "etp", "forward")
    assert (gather.kind, scatter.kind, gather.stream) == ("all_gather", "reduce_scatter", "tp")
    # Together they have twice as many rows, and half of them come from the other.
    assert sent(gather) == sent(scatter) == 2 * rows * HIDDEN * BYTES / 2
    assert [sent(task) for task in moves(program, "etp", "backward")] == [sent(gather)] * 2
    (received,) = [a for a in gather.allocates if a.kind == "communication buffers"]
    (kept,) = [a for a in scatter.allocates if a.kind == "communication buffers"]
    assert set(np.asarray(received.bytes).tolist()) == {2 * rows * HIDDEN * BYTES}
    assert set(np.asarray(kept.bytes).tolist()) == {rows * HIDDEN * BYTES}


def test_tp_ranks_dispatch_a_share_of_their_tokens_each(small: Small) -> None:
    program = lower(small("mixture", *EXPERTS))
    _, dispatch, _ = moves(program, "ep", "forward")[:3]
    assert sent(dispatch) == TOKENS / 2 * 2 * HIDDEN * BYTES * 3 / 4


def hardware(accelerators: int) -> Cluster:
    """H200 nodes whose collectives reach all of the NVLink rate at one latency."""
    node = load_node("hgx-h200", Path())
    node = node.model_copy(update={"scale_up": node.scale_up.model_copy(update={"collectives": {}})})
    return assemble(node, load_accelerator("h200-sxm", Path()), load_fabric("rail-fat-tree-400g", Path()), accelerators)


def network(mesh: Mesh, accelerators: int, stage: int = 0) -> tuple[Network, Cluster]:
    cluster = hardware(accelerators)
    sizes = [level.size for level in cluster.levels]
    placement = Placement(mesh, apart(mesh.groups(), mesh.stage_ranks), sizes, stage)
    return Network(cluster, placement, mesh), cluster


def test_a_send_goes_to_the_next_at_once_and_a_relay_in_turn() -> None:
    ways, _ = network(Mesh(cp=4, dp_shard=2), 8)
    send = ways.collective(Collective("send", "cp", 90e6), 90e6)
    relay = ways.collective(Collective("relay", "cp", 90e6), 90e6)
    assert send is not None
    assert relay is not None
    one_s = 2e-6 + 90e6 / 450e9
    assert set(send.duration_ns.tolist()) == {int(np.ceil(one_s * 1e9))}
    assert set(relay.duration_ns.tolist()) == {int(np.ceil(3 * one_s * 1e9))}
    assert ways.collective(Collective("relay", "tp", 90e6), 90e6) is None


def test_neighbours_on_two_nodes_hand_over_through_their_ports() -> None:
    ways, cluster = network(Mesh(cp=2, tp=8), 16)
    send = ways.collective(Collective("send", "cp", 43e6), 43e6)
    assert send is not None
    seconds = 22.4e-6 + cluster.levels[1].latency_s + 43e6 / (0.86 * 50e9)
    assert set(send.duration_ns.tolist()) == {int(np.ceil(seconds * 1e9))}


@pytest.mark.parametrize(("accelerators", "level", "rate"), [(8, 0, 450e9), (16, 1, 0.86 * 50e9)])
def test_a_stage_hands_over_inside_the_node_or_through_its_ports(accelerators: int, level: int, rate: float) -> None:
    ways, cluster = network(Mesh(pp=2, dp_shard=accelerators // 2), accelerators)
    transfer = ways.hand_over(86e6, "forward 0 0", 0, 1)
    seconds = (22.4e-6 if level else 0.0) + cluster.levels[level].latency_s + 86e6 / rate
    assert set(transfer.duration_ns.tolist()) == {int(np.ceil(seconds * 1e9))}
    assert transfer.collective.link_busy_ns[cluster.levels[level].name] == pytest.approx(86e6 / rate * 1e9)
    assert ("host link copy_out" in transfer.collective.link_busy_ns) == (level == 1)
    assert (transfer.collective.meeting, transfer.collective.parts) == ("forward 0 0", (0, 1))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_ranks_folded_take_as_long_as_ranks_apart(small: Small, recompute: str) -> None:
    read = small(
        "mixture", "parallel={pp: 2, tp: 2, dp_replicate: 2, dp_shard: 2, ep: 2}", f"training.recompute={recompute}",
        "routing.synthetic.sigma=1", "training.global_batch_sequences=12",
    )  # fmt: skip
    folded, alone = forecast(*read).summary, forecast(*read, fold=False).summary
    assert (folded["engine"]["classes"], alone["engine"]["classes"]) == (4, 16)
    assert folded["step_time_s"]["p50"] == alone["step_time_s"]["p50"]
    assert folded["time"] == pytest.approx(alone["time"], rel=1e-9)
    for found in (folded, alone):
        # Listed by behaviour, of which there is one a rank when they are apart.
        found["memory"]["hbm"].pop("peaks")
    assert folded["memory"] == alone["memory"]

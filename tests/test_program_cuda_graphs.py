"""CUDA graphs: which operators they hold, what is left to the host, and what the device waits for."""

import numpy as np
import pytest

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.program.cuda_graphs import captured
from simulator.program.training_step import TrainingStep
from tests.small_jobs import Small

NAMES = [
    *("input_layernorm", "qkv_proj", "attention", "o_proj", "mixer_add"),
    *("post_attention_layernorm", "router", "route", "permute"),
    *("dispatch", "experts_fc1", "experts_fc2", "combine", "unpermute", "shared_experts_down", "shared_add"),
]
DENSE = ["input_layernorm", "attention", "mixer_add", "post_attention_layernorm", "gate_up", "down", "feed_forward_add"]
FUSED = ("training.execution=fused", "training.zero=1", "parallel.ep=8")
HELD = ("attn", "moe_router", "moe_preprocess")


@pytest.mark.parametrize(
    ("names", "scopes", "held"),
    [
        (NAMES, {"attn"}, {0, 1, 2, 3, 4}),
        (NAMES, {"moe_router"}, {5, 6, 7, 14}),
        (NAMES, {"moe_router", "moe_preprocess"}, {5, 6, 7, 8, 14}),
        (["mixer_add", "route", "count_rows", "permute", "dispatch"], {"moe_router", "moe_preprocess"}, {1, 2, 3}),
        (["mixer_add", "route", "preprocess", "dispatch"], {"moe_preprocess"}, {2}),
        (NAMES, {"mlp"}, set()),
        (DENSE, {"mlp"}, {3, 4, 5, 6}),
        (DENSE, {"attn", "moe_router"}, {0, 1, 2}),
    ],
)
def test_scopes_hold_the_operators_that_megatron_captures(names: list[str], scopes: set[str], held: set[int]) -> None:
    assert captured(names, scopes) == held


def layer_tasks(small: Small, *settings: str) -> list[Task]:
    """Forward and backward tasks of layer 1 in the first micro-batch."""
    (program,) = TrainingStep(assemble_job(*small("mixture", *FUSED, *settings))).programs(1)
    return [task for task in program.tasks if task.layer == 1 and task.phase in ("forward", "backward")]


def test_the_host_launches_a_copy_and_a_replay_each_way(small: Small) -> None:
    plain, graphed = layer_tasks(small), layer_tasks(small, f"training.cuda_graphs=[{', '.join(HELD)}]")
    assert [task.name for task in plain] == [task.name for task in graphed]
    names = [task.name for task in plain if task.phase == "forward"]
    held = {names[number] for number in captured(names, HELD)}
    launch_ns = 48_000
    for phase in ("forward", "backward"):
        inside = [task for task in graphed if task.phase == phase and task.name in held]
        assert sum(task.host_ns for task in inside) == 2 * launch_ns
        outside = [(task.name, task.host_ns) for task in graphed if task.phase == phase and task.name not in held]
        assert outside == [(task.name, task.host_ns) for task in plain if task.phase == phase and task.name not in held]


def test_kernels_of_a_graph_follow_at_the_gap_within_graphs(small: Small) -> None:
    plain, graphed = layer_tasks(small), layer_tasks(small, "training.cuda_graphs=[attn]")
    before, after = (next(task for task in tasks if task.name == "mixer_add") for tasks in (plain, graphed))
    # One kernel: 2 us between two launches, 0.12 us in a graph.
    assert np.max(before.duration_ns) - np.max(after.duration_ns) == 1880
    assert before.host_ns == 48_000
    assert after.host_ns == 0


def test_tensors_of_a_graph_come_from_the_pool_of_graphs(small: Small) -> None:
    tasks = layer_tasks(small, "training.cuda_graphs=[attn]")
    pools = {(task.name, one.pool) for task in tasks if task.phase == "forward" for one in task.allocates}
    assert ("attention", "graphs") in pools
    assert ("attention", "compute") not in pools
    assert ("experts_fc1", "compute") in pools


ITERATION = ("training.cuda_graphs=[full_iteration]", "training.exchange=deduplicated", "training.grouped_gemm=grouped")


def test_all_passes_in_one_graph_cost_the_host_one_launch_and_no_wait(small: Small) -> None:
    (program,) = TrainingStep(assemble_job(*small("mixture", *FUSED, *ITERATION))).programs(1)
    (plain,) = TrainingStep(assemble_job(*small("mixture", *FUSED, *ITERATION[1:]))).programs(1)
    passes, others = ([t for t in program.tasks if (t.phase == "optimizer") == late] for late in (False, True))
    assert [task.host_ns for task in passes if task.host_ns] == [48_000]
    assert not any(task.blocks_host for task in passes)
    assert any(task.blocks_host for task in plain.tasks)
    assert sum(task.host_ns for task in others) == sum(t.host_ns for t in plain.tasks if t.phase == "optimizer") > 0
    assert [np.max(t.duration_ns) for t in others if t.stream == "compute"] == [
        np.max(t.duration_ns) for t in plain.tasks if t.phase == "optimizer" and t.stream == "compute"
    ]
    one, before = (next(t for t in p.tasks if t.name == "attention" and t.phase == "forward") for p in (program, plain))
    # One kernel, 0.12 us behind the one before instead of 2.
    assert np.max(before.duration_ns) - np.max(one.duration_ns) == 1880


def test_a_stage_that_first_receives_launches_its_graph_as_well(small: Small) -> None:
    job = assemble_job(*small("mixture", *FUSED, *ITERATION, "parallel={pp: 2, dp_shard: 8, ep: 8}"))
    for stage in TrainingStep(job).programs(2):
        passes = [task for task in stage.tasks if task.phase != "optimizer"]
        assert [task.host_ns for task in passes if task.host_ns] == [48_000]
        assert passes[0].host_ns == 48_000


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("training.zero=2", "training.offload.optimizer=1"), "known of Megatron-LM's distributed optimizer alone"),
        (("training.exchange=all_to_all",), "whose host reads numbers of rows; allowed: deduplicated, hierarchical"),
        (("training.grouped_gemm=per_expert",), "add grouped_gemm: grouped, or fused"),
        (("training.cuda_graphs=[attn, full_iteration]",), "with parts of layers, which it holds"),
        (("training.sequences={domains: 2}",), "with images or sequences that differ"),
    ],
)
def test_an_iteration_whose_shapes_the_host_has_to_know_is_refused(
    small: Small, settings: tuple[str, ...], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        assemble_job(*small("mixture", *FUSED, *ITERATION, *settings))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("training.execution=eager",), "found with execution eager; known of fused alone"),
        (("training.zero=3",), "allowed: zero 1 or 2"),
        (("training.cuda_graphs=[moe_preprocess]",), "found moe_preprocess without moe_router"),
        (("training.cuda_graphs=[mlp]",), "every layer of qwen3_moe has routed experts"),
        (("training.recompute=full",), "found with whole layers recomputed (training.recompute: full)"),
        (("training.recompute={modules: [core_attn]}",), "found attn with the module core_attn recomputed"),
        (("cluster.node=mi300x-oam", "cluster.fabric=rail-fat-tree-400g"), "found on mi300x, of which no graphs are"),
    ],
)
def test_what_cannot_be_captured_is_refused(small: Small, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(Refused) as refused:
        assemble_job(*small("mixture", *FUSED, "training.cuda_graphs=[attn]", *settings))
    assert said in str(refused.value)
    assert "training.cuda_graphs" in str(refused.value)

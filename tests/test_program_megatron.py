"""What Megatron-LM does to gradients: a dense model of four layers on 16 ranks, worked out by hand.

A layer is 1,024 wide, with 8 heads and an intermediate width of 4,096; the vocabulary has 2,048 words.
"""

import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.model.architecture import GroupedAttention
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import Lane
from simulator.model.operators.layers import component_operators
from simulator.program.costs import Costs
from simulator.program.megatron import hooked_weights, unread_gradients, with_hooks, with_split
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
PARAMETERS = 4 * LAYER + 2 * 2048 * 1024 + 1024
OWNED = PARAMETERS / 16
SHAPES = (3 * 1024, 1024, 2 * 4096, 4096)
"""Rows of joined q, k and v, of the output projection, of gate and up; columns of down. The other side is 1,024."""


def program(small: Small, *overrides: str, kind: str = "dense", micro_batches: int = 1) -> StageProgram:
    return lower(small(kind, "training.zero=1", *overrides), micro_batches)


def unread(lowered: StageProgram) -> float:
    return sum(float(a.bytes) for a in lowered.resident if a.key == "resident.unread gradients")


def named(lowered: StageProgram, name: str) -> Task:
    return next(task for task in lowered.tasks if task.name == name)


def test_one_unread_gradient_of_each_shape_stays_however_many_layers_there_are(small: Small) -> None:
    assert unread(program(small)) == 2 * 1024 * sum(SHAPES)


def test_ranks_of_a_split_layer_keep_their_shapes(small: Small) -> None:
    assert unread(program(small, "parallel.tp=4", "parallel.dp_shard=4")) == 2 * 1024 * sum(SHAPES) / 4


def test_experts_keep_one_matrix_of_each_shape_and_the_router_none(small: Small) -> None:
    # Attention as before, experts of 512: gate and up 1,024 x 1,024, as the output projection is, and down 1,024 x 512.
    assert unread(program(small, kind="mixture")) == 2 * 1024 * (3 * 1024 + 1024 + 512)


@pytest.mark.parametrize("override", ["training.execution=eager", "training.execution=compiled", "training.zero=3"])
def test_other_linear_layers_keep_none(small: Small, override: str) -> None:
    assert unread(program(small, override)) == 0


def test_grouped_queries_and_values_are_copied_out_of_the_joined_product() -> None:
    attention, workload = GroupedAttention(8, 2, 128), Workload((1024,))
    product, *others = component_operators(attention, 1024, workload)
    kept, split, *behind = with_split((product, *others), attention, workload)
    head = 2 * 1024 * 128
    assert [k.bytes for k in split.forward] == [2 * 8 * head, 2 * 2 * head]
    assert [(k.kind, k.bytes) for k in split.backward] == [("cat", 2 * 12 * head)]
    assert (kept, behind) == (product, others)
    _, alike, *_ = with_split((product,), GroupedAttention(8, 8, 128), workload)
    assert [k.bytes for k in alike.forward] == [2 * 8 * head]
    assert list(with_split(others, attention, workload)) == others


def gather_buffer(lowered: StageProgram) -> float:
    return sum(float(a.bytes) for a in lowered.resident if a.key == "resident.gather buffer")


def test_the_output_layer_gathers_into_a_buffer_that_stays(small: Small) -> None:
    split = ("parallel.tp=4", "parallel.dp_shard=4")
    assert gather_buffer(program(small, *split)) == 2 * 2048 * 1024
    assert gather_buffer(program(small, *split, "parallel={tp: 4, pp: 2, dp_shard: 2}")) == 0  # the first stage
    for other in ("training.zero=3", "training.execution=eager"):
        assert gather_buffer(program(small, *split, other)) == 0
    assert gather_buffer(program(small)) == 0


def test_the_matmul_library_holds_32_mib_for_each_of_its_handles(small: Small) -> None:
    def handles(*overrides: str) -> float:
        held = {a.key: float(a.bytes) for a in program(small, *overrides).resident}
        return held["resident.matmul workspaces"] / 2**25

    assert handles() == 3
    assert handles("parallel={pp: 2, dp_shard: 8}") == 1  # the first stage has no output layer
    assert handles("training.execution=eager") == handles("training.zero=3") == 2


def test_the_gradient_of_logits_lies_where_they_did_until_the_output_layer_has_read_it(small: Small) -> None:
    lowered = program(small)
    logits = {a.key: task for task in lowered.tasks for a in task.allocates if a.kind == "logits"}
    ((key, made),) = logits.items()
    (freed,) = [task for task in lowered.tasks if key in task.releases]
    assert (made.name, made.phase) == ("lm_head", "forward")
    assert (freed.name, freed.phase) == ("lm_head", "backward")
    assert [float(a.bytes) for a in made.allocates if a.key == key] == [2 * 2048 * 2048]


def test_a_frozen_model_keeps_none(small: Small) -> None:
    assert unread(program(small, "training.lora={}")) == 0


def test_gradients_that_no_matmul_adds_are_tensors_for_a_moment(small: Small) -> None:
    tasks = program(small).tasks
    made = {a.key: float(a.bytes) for task in tasks for a in task.allocates if a.key.startswith("gradient.")}
    norms = {f"gradient.layer {i}.{n}_layernorm.weight": 2048.0 for i in range(4) for n in ("input", "post_attention")}
    ends = dict.fromkeys(("gradient.root.model.embed_tokens.weight", "gradient.root.lm_head.weight"), 2.0 * 2048 * 1024)
    assert made == norms | ends | {"gradient.root.model.norm.weight": 2048.0}
    assert set(made) <= {key for task in tasks for key in task.releases}


def test_a_hook_reads_the_gradient_and_reads_and_writes_the_buffer() -> None:
    norm = Operator("norm", (), (), (Kernel("reduction", 0.0, 1.0),), weights=("norm.weight",))
    assert with_hooks(norm, {"norm.weight": 100}, 4).backward_weight[-1].bytes == (2 + 2 * 4) * 100
    assert with_hooks(norm, {"norm.weight": 100}, 2).backward_weight[-1].bytes == (2 + 2 * 2) * 100
    assert with_hooks(norm, {"norm.weight": 0}, 4) == norm


def test_a_hook_copies_where_nothing_is_added_and_does_so_for_each_expert() -> None:
    product = Kernel("grouped_gemm", 1.0, 1.0, (8, 4))
    experts = Operator("up", (), (), (product,), weights=("up.weight", "up.bias"), rows="routed")
    assert with_hooks(experts, {"up.weight": 64}, 4) == experts
    *_, hook = with_hooks(experts, {"up.weight": 64}, 4, fused=False, adds=False, experts=2).backward_weight
    # An expert's 32 elements are read in bf16 and written in fp32.
    assert (hook.fixed_bytes, hook.launches, hook.bytes) == ((2 + 4) * 32, 2, 0)


def test_biases_of_one_product_are_one_tensor() -> None:
    weights = ("q_proj.weight", "k_proj.weight")
    joined = linear(Lane(2, "fused", 2), "qkv", "hidden", 8, 24, weights, bias=True)
    (added,) = with_hooks(joined, {"q_proj.bias": 16, "k_proj.bias": 8}, 2).backward_weight[2:]
    assert added.bytes == (2 + 2 * 2) * 24


def test_a_matmul_adds_its_weights_gradient_but_not_its_biases() -> None:
    product = Kernel("gemm", 1.0, 1.0, (8, 4, 100))
    linear = Operator("up", (), (), (product,), weights=("up.weight", "up.bias"))
    assert hooked_weights(linear) == ("up.bias",)
    assert unread_gradients([linear, linear]) == [2 * 8 * 4]


PASSES = {
    "check for NaN": ("reduction", 4 * PARAMETERS),
    "scale gradients": ("elementwise", 8 * PARAMETERS),
    "gradient norm": ("reduction", 4 * OWNED),
    "clip gradients": ("elementwise", 8 * OWNED),
    "copy parameters": ("cast_down", 6 * OWNED),
    "zero gradients": ("fill", 4 * PARAMETERS),
}
"""Kind of kernel and bytes: 16 an element of the whole buffer and 18 of the owned share."""


@pytest.mark.parametrize("name", PASSES)
def test_a_step_passes_over_the_buffer_and_over_the_owned_share(small: Small, name: str) -> None:
    read = small("dense", "training.zero=1")
    costs = Costs(assemble_job(*read).cluster.accelerator, "fused")
    kind, traffic = PASSES[name]
    expected = costs.price(Kernel(kind, 0.0, float(traffic), dtype="fp32")).duration_ns
    assert named(lower(read), name).duration_ns == expected


@pytest.mark.parametrize(
    ("override", "left_out"),
    [
        ("training.optimizer={master_weights: false}", {"copy parameters"}),
        ("cluster.accelerators=1", {"scale gradients"}),
    ],
)
def test_passes_that_there_is_no_reason_for_are_left_out(small: Small, override: str, left_out: set[str]) -> None:
    alone = ("parallel.dp_shard=1",) if "accelerators" in override else ()
    names = {task.name for task in program(small, override, *alone).tasks}
    assert PASSES.keys() - names == left_out


def test_gradients_summed_in_bf16_are_widened_for_the_norm(small: Small) -> None:
    names = [task.name for task in program(small, "training.fsdp.reduce_dtype=bf16").tasks]
    assert names.index("widen gradients") == names.index("gradient norm") - 1


def test_the_host_waits_for_all_that_it_has_issued_once_something_is_received(small: Small) -> None:
    overrides = ("parallel={pp: 2, dp_shard: 8}", "training.zero=1")
    first, second = TrainingStep(assemble_job(*small("dense", *overrides))).programs(2)
    for stage, way in ((first, "receive backward"), (second, "receive forward")):
        received = [i for i, task in enumerate(stage.tasks) if task.name == way]
        assert len(received) == 2
        for position in received:
            after = stage.tasks[position + 1]
            assert (after.name, after.stream, after.duration_ns, after.blocks_host) == (
                "synchronize",
                "compute",
                0,
                True,
            )
            assert position in after.deps
    sharded = TrainingStep(assemble_job(*small("dense", *overrides, "training.zero=3"))).programs(2)[1]
    assert "synchronize" not in {task.name for task in sharded.tasks}

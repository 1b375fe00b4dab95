"""Megatron-FSDP: a dense model of four layers on 16 ranks, worked out by hand.

A layer is 1,024 wide, with 8 heads and an intermediate width of 4,096; the vocabulary has 2,048 words.
"""

import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.program.stage import StageProgram

LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
PARAMETERS = 4 * LAYER + 2 * 2048 * 1024 + 1024
WAY = "training.fsdp.implementation=megatron"


def program(small: Small, *overrides: str) -> StageProgram:
    return lower(small("dense", WAY, *overrides))


def named(lowered: StageProgram, start: str) -> list[Task]:
    return [task for task in lowered.tasks if task.name.startswith(start)]


def allocated(lowered: StageProgram, start: str) -> list[float]:
    return [float(a.bytes) for task in lowered.tasks for a in task.allocates if a.key.startswith(start)]


def test_nothing_is_copied_around_a_transfer(small: Small) -> None:
    lowered, fsdp2 = program(small), lower(small("dense"))
    for copy in ("gather copy-in", "copy-out", "copy-in"):
        assert named(fsdp2, copy)
        assert not named(lowered, copy)


def test_each_layer_is_gathered_twice_and_reduced_once_in_the_same_bytes_as_by_fsdp2(small: Small) -> None:
    lowered, fsdp2 = program(small), lower(small("dense"))
    for transfer in ("all-gather layer", "reduce-scatter layer"):
        sent, asked = (
            [t.collective.wire_bytes for t in named(one, transfer) if t.collective] for one in (lowered, fsdp2)
        )
        assert sent == asked
    assert len(named(lowered, "all-gather layer")) == 8
    assert len(named(lowered, "reduce-scatter layer")) == 4


def test_a_gathered_bucket_is_the_parameters_and_gradients_are_made_in_that_of_their_reduction(small: Small) -> None:
    lowered = program(small)
    assert allocated(lowered, "unsharded.layer") == [2 * LAYER] * 8
    assert allocated(lowered, "reduce.layer") == [4 * LAYER] * 4
    assert allocated(program(small, "training.fsdp.reduce_dtype=bf16"), "reduce.layer") == [2 * LAYER] * 4


def test_norms_gradients_are_tensors_before_a_hook_copies_them(small: Small) -> None:
    assert allocated(program(small), "gradient.layer 0") == [2 * 1024] * 2


def test_gradients_that_no_matmul_adds_stay_until_their_layer_is_through(small: Small) -> None:
    settings = ("training.megatron.gradient_accumulation_fusion=false", "parallel.ep=2")
    lowered = lower(small("mixture", WAY, *settings))
    # A rank has 8 of 16 experts: gate and up 2 x 512 x 1,024 each, down 512 x 1,024.
    experts = [task for task in lowered.tasks if task.phase == "backward" and task.name.startswith("experts")]
    made = [a for task in experts for a in task.allocates if a.key.startswith("gradient.layer 3.")]
    assert sum(float(a.bytes) for a in made) == 2 * 8 * 3 * 512 * 1024
    (behind,) = {n for n, t in enumerate(lowered.tasks) for a in made if a.key in t.releases}
    assert lowered.tasks[behind + 1].name.startswith("reduce-scatter layer 3")


def test_a_gather_waits_for_compute_and_not_for_the_reduction_before_it(small: Small) -> None:
    tasks = program(small).tasks
    gathers = [number for number, task in enumerate(tasks) if task.name.startswith("all-gather layer")]
    reductions = [number for number, task in enumerate(tasks) if task.stream == "fsdp_reduce"]
    assert reductions[0] < gathers[-1]
    for number in gathers:
        assert not set(tasks[number].deps) & set(reductions)
        compute = [n for n, task in enumerate(tasks[:number]) if task.stream == "compute"]
        assert not compute or compute[-1] in tasks[number].deps


def test_a_batch_is_broadcast_and_its_mask_counted_as_by_megatron(small: Small) -> None:
    split = ("parallel={tp: 2, dp_shard: 8}", "training.megatron.attention_mask=true")
    batch = assemble_job(*small("dense", WAY, *split)).batch
    assert batch.broadcast
    assert batch.mask
    assert not assemble_job(*small("dense", split[0])).batch.broadcast


def test_shards_in_bf16_and_their_gradients_stay_beside_master_weights(small: Small) -> None:
    held = {a.key: float(a.bytes) for a in program(small).resident}
    assert held["resident.parameters"] == 2 * PARAMETERS / 16
    assert held["resident.gradients"] == held["resident.master weights"] == 4 * PARAMETERS / 16


def test_reductions_wait_for_each_other_only_beyond_a_thousand_million_elements(small: Small) -> None:
    lowered = program(small)
    reductions = [n for n, task in enumerate(lowered.tasks) if task.name.startswith("reduce-scatter")]
    behind = {
        dep for task in lowered.tasks if task.phase == "backward" and task.stream == "compute" for dep in task.deps
    }
    assert not behind & set(reductions)


def test_gradients_in_bf16_are_scaled_in_a_pass_and_others_as_they_are_summed(small: Small) -> None:
    assert not named(program(small), "scale")
    assert len(named(program(small, "training.fsdp.reduce_dtype=bf16"), "scale layer")) == 4


def test_master_weights_are_narrowed_and_gradients_emptied_behind_the_update(small: Small) -> None:
    assert [task.name for task in program(small).tasks][-2:] == ["copy parameters", "zero gradients"]


def test_the_norm_of_gradients_is_bounded_in_the_format_of_the_weights(small: Small) -> None:
    lowered = program(small)
    names = [task.name for task in lowered.tasks if task.phase == "optimizer"]
    assert names[:2] == ["gradient norm", "clip gradients"]
    beside = lower(small("dense", "training.zero=1"))
    for name in names[:2]:
        assert named(lowered, name)[0].duration_ns == named(beside, name)[0].duration_ns
    bf16 = [task.name for task in program(small, "training.fsdp.reduce_dtype=bf16").tasks if task.phase == "optimizer"]
    assert bf16[:3] == ["widen gradients", "gradient norm", "clip gradients"]


def test_what_is_gathered_in_fp8_is_kept_so_and_its_scales_are_found_behind_the_update(small: Small) -> None:
    lowered = program(small, "training.float8={recipe: tensorwise, all_gather: true}")
    matrices = 4 * (LAYER - 2 * 1024)
    (kept,) = [float(a.bytes) for a in lowered.resident if a.key == "resident.parameters"]
    assert kept == (2 * PARAMETERS - matrices) / 16
    names = [task.name for task in lowered.tasks]
    assert names[-4:] == ["scales of weights", "scales", "copy parameters", "zero gradients"]
    assert [task.kind for task in named(lowered, "scales")] == ["reduction", "all_reduce"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("training.zero=1",), "zero 1 shards no parameters; allowed: fsdp2, or zero 3"),
        (("training.execution=eager",), "known with fused alone (Transformer Engine)"),
        (("parallel={pp: 2, dp_shard: 8}",), "with pp(2); known without pipeline stages alone: pp 1"),
        (("training.megatron.overlap_grad_reduce=true",), "Megatron-FSDP reduces and gathers beside compute anyway"),
        (("training.fsdp.made=whole",), "training.fsdp.made: is FSDP2's"),
    ],
)
def test_what_is_not_known_of_it_is_refused(small: Small, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Refused, match="training") as refused:
        assemble_job(*small("dense", WAY, *overrides))
    assert problem in str(refused.value)

"""Recomputation in a program: what runs again, when, and what is held meanwhile. Four layers of 1,024, 8 heads of 128,
an intermediate width of 4,096; 2,048 tokens.
"""

from itertools import groupby

import numpy as np
import pytest
from small_jobs import Small, lower
from test_program_fsdp import levels

from simulator.engine.ledger import account
from simulator.engine.task import Task
from simulator.program.stage import StageProgram

TOKEN_BYTES = 2048 * 2
"""Bytes of one element of every token."""
STATISTICS = 8 * 4 / 2
KEPT = ("saved activations",)
ZERO1, SPREAD = "training.zero=1", "parallel.ep=8"


def program(small: Small, kind: str, recompute: str, *overrides: str, micro_batches: int = 1) -> StageProgram:
    return lower(small(kind, f"training.recompute={recompute}", *overrides), micro_batches)


def again(lowered: StageProgram, layer: int) -> list[Task]:
    return [task for task in lowered.tasks if task.phase == "recompute" and task.layer == layer]


def held_between_passes(lowered: StageProgram, *kinds: str) -> float:
    """Elements a token held when the last layer's backward pass begins, without logits."""
    first = next(n for n, task in enumerate(lowered.tasks) if task.phase == "backward" and task.layer == 3)
    return float(levels(lowered, *kinds)[first - 1]) / TOKEN_BYTES


def kept_of_a_layer(small: Small, kind: str, recompute: str, *overrides: str) -> float:
    """Elements a token that each layer keeps: what four of them hold, less the norm behind them."""
    whole = held_between_passes(program(small, kind, "full", *overrides), *KEPT)
    return (held_between_passes(program(small, kind, recompute, *overrides), *KEPT) - whole) / 4 + 1024


def test_what_an_eager_layer_keeps_with_alternate_products(small: Small) -> None:
    # Its input, q, v, half of gate and up, down; attention's result and its statistics.
    kept = kept_of_a_layer(small, "dense", "{keep: alternate_matmuls}", "training.execution=eager")
    assert kept == 1024 + 1024 + 1024 + 4096 + 1024 + 1024 + STATISTICS


def test_a_compiler_keeps_one_tensor_less(small: Small) -> None:
    kept = kept_of_a_layer(small, "dense", "{keep: alternate_matmuls}", "training.execution=compiled")
    assert kept == 1024 + 1024 + 1024 + 4096 + 1024 + STATISTICS


def test_kept_products_do_not_run_again(small: Small) -> None:
    lowered = program(small, "dense", "{keep: alternate_matmuls}", "training.execution=eager")
    names = [task.name for task in again(lowered, 2)]
    # Down, the last to save anything, finds its input there and does not run.
    assert names == [
        "input_layernorm", "k_proj", "rotary", "o_proj", "mixer_add", "post_attention_layernorm", "up", "activation",
    ]  # fmt: skip
    forward = {t.name: t for t in lowered.tasks if t.phase == "forward" and t.layer == 2}
    assert all(np.array_equal(task.duration_ns, forward[task.name].duration_ns) for task in again(lowered, 2))
    assert all(task.host_ns == forward[task.name].host_ns for task in again(lowered, 2))


def test_every_second_layer_runs_again_and_the_others_keep_everything(small: Small) -> None:
    lowered = program(small, "dense", "{every: 2}")
    assert [bool(again(lowered, layer)) for layer in range(4)] == [False, True, False, True]
    none, full = (held_between_passes(program(small, "dense", what), *KEPT) for what in ("none", "full"))
    assert held_between_passes(lowered, *KEPT) == (none + full) / 2


def test_stages_count_their_layers_from_one(small: Small) -> None:
    split = "parallel={pp: 2, dp_shard: 8}"
    lowered = program(small, "dense", "{every: 2}", split, micro_batches=2)
    assert [bool(again(lowered, layer)) for layer in range(2)] == [False, True]


def test_a_dense_part_runs_again_to_the_end_before_its_backward_pass(small: Small) -> None:
    lowered = program(small, "dense", "{modules: [mlp]}", ZERO1)
    order = [(t.phase, t.name) for t in lowered.tasks if t.layer == 1 and t.phase != "forward"]
    part = ["post_attention_layernorm", "gate_up", "activation", "down"]
    assert order[:9] == [
        ("backward", "feed_forward_add"),
        *(("recompute", name) for name in part),
        *(("backward", name) for name in reversed(part)),
    ]
    # Gone are the norm's statistics, its result, gate and up, and their product.
    before = kept_of_a_layer(small, "dense", "none", ZERO1)
    assert before - kept_of_a_layer(small, "dense", "{modules: [mlp]}", ZERO1) == 2 + 1024 + 3 * 4096


@pytest.mark.parametrize("execution", ["eager", "compiled", "fused"])
def test_megatrons_checkpoint_runs_to_its_end_and_pytorchs_does_not(small: Small, execution: str) -> None:
    megatron, pytorch = (
        {task.name for task in again(program(small, "dense", "full", zero, f"training.execution={execution}"), 2)}
        for zero in (ZERO1, "training.zero=3")
    )
    assert "down" in megatron
    assert "down" not in pytorch


def test_a_discarded_result_is_copied_back(small: Small) -> None:
    lowered = program(small, "latent", "{modules: [mla_up_proj]}", ZERO1)
    names = [task.name for task in again(lowered, 1)]
    assert names == ["q_proj", "kv_a_norm", "rotary", "kv_b_proj", "join_keys", "restore"]
    after = lowered.tasks[lowered.tasks.index(again(lowered, 1)[-1]) + 1]
    assert (after.phase, after.name) == ("backward", "attention")
    # Queries, keys and values: made again, and once more where attention looks for them.
    whole = 8 * (192 + 192 + 128)
    assert [float(a.bytes) / TOKEN_BYTES for a in again(lowered, 1)[-1].allocates] == [whole, whole]
    before = kept_of_a_layer(small, "latent", "none", ZERO1)
    # The latent's norm is part of the product: its result and statistics go too.
    gone = before - kept_of_a_layer(small, "latent", "{modules: [mla_up_proj]}", ZERO1)
    assert gone == whole + 256 + 2


def test_experts_exchange_again(small: Small) -> None:
    def exchanges(recompute: str) -> dict[str, int]:
        tasks = [t for t in program(small, "mixture", recompute, ZERO1, SPREAD).tasks if t.kind == "all_to_all"]
        return {phase: len(list(group)) for phase, group in groupby(sorted(t.phase for t in tasks))}

    # Four layers: rows out, their weights out, rows home.
    assert exchanges("{modules: [moe_act, layernorm]}") == {"forward": 12, "backward": 12}
    assert exchanges("{modules: [moe]}") == {"forward": 12, "recompute": 12, "backward": 12}


def test_kept_exchanges_do_not_run_again(small: Small) -> None:
    lowered = program(small, "mixture", "{keep: matmuls}", SPREAD)
    assert not [task for task in lowered.tasks if task.phase == "recompute" and task.kind == "all_to_all"]


@pytest.mark.parametrize(
    ("kind", "recompute"),
    [
        ("dense", "{every: 3}"),
        ("dense", "{keep: matmuls}"),
        ("dense", "{modules: [core_attn, mlp]}"),
        ("mixture", "{every: 2}"),
        ("mixture", "{keep: alternate_matmuls}"),
        ("mixture", "{keep: matmuls}"),
        ("mixture", "{modules: [core_attn, layernorm, moe]}"),
        ("latent", "{modules: [mla_up_proj, moe_act, layernorm, mlp, shared_experts, core_attn]}"),
        ("latent", "{keep: alternate_matmuls}"),
    ],
)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("parallel={tp: 2, dp_shard: 8}",),
        ("training.lora={rank: 8, targets: [attention]}",),
    ],
)
def test_a_program_gives_back_all_that_it_takes(
    small: Small, kind: str, recompute: str, overrides: tuple[str, ...]
) -> None:
    lowered = program(small, kind, recompute, *overrides, micro_batches=2)
    ledger = account(lowered.tasks, lowered.resident, 1)["hbm"]
    assert ledger.left_bytes.tolist() == [0.0]


@pytest.mark.parametrize("kind", ["dense", "mixture", "latent"])
@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_other_stacks_do_too(small: Small, kind: str, execution: str) -> None:
    lowered = program(small, kind, "{keep: alternate_matmuls}", f"training.execution={execution}", micro_batches=2)
    assert account(lowered.tasks, lowered.resident, 1)["hbm"].left_bytes.tolist() == [0.0]

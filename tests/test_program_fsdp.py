from collections import Counter

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.task import Allocation, Task
from simulator.program.stage import StageProgram

# The small dense model over 16 ranks; every dim divides by 16, so nothing is padded.
LAYER = 4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
HEAD = 2048 * 1024 + 1024
ROOT = HEAD + 2048 * 1024
ADAPTERS = 4 * 2 * 16 * 1024
LORA = "training.lora={rank: 16, targets: [attention]}"


def levels(program: StageProgram, *kinds: str) -> list[float]:
    """Bytes of *kinds* that are held at each task, once it has taken its own."""
    held: dict[str, Allocation] = {}
    found = []
    for task in program.tasks:
        held |= {allocation.key: allocation for allocation in task.allocates}
        found.append(sum(float(np.max(item.bytes)) for item in held.values() if item.kind in kinds))
        for key in task.releases:
            del held[key]
    return found


def highest(program: StageProgram, phase: str, layer: int, *kinds: str) -> float:
    tasks = zip(program.tasks, levels(program, *kinds), strict=True)
    return max(level for task, level in tasks if (task.phase, task.layer) == (phase, layer))


def named(program: StageProgram, start: str) -> list[Task]:
    return [task for task in program.tasks if task.name.startswith(start)]


def sent(tasks: list[Task]) -> float:
    return sum(float(np.max(task.collective.wire_bytes)) for task in tasks if task.collective)


def test_three_unsharded_copies_at_the_forward_peak(small: Small) -> None:
    # A layer's parameters, its flat buffer and the next layer's, beside the root's parameters; 2 bytes each.
    program = lower(small("dense"))
    for layer in (0, 1, 2):
        assert highest(program, "forward", layer, "gathered parameters") == 2 * ROOT + 3 * 2 * LAYER
    assert highest(program, "forward", 3, "gathered parameters") == 2 * ROOT + 3 * 2 * LAYER


def test_two_unsharded_copies_in_the_backward_pass_of_a_frozen_model(small: Small) -> None:
    program = lower(small("dense", LORA))
    unit = LAYER + ADAPTERS
    for layer in (1, 2, 3):
        assert highest(program, "backward", layer, "gathered parameters") == 2 * ROOT + 2 * 2 * unit


def test_the_root_frees_the_last_gather_buffer_behind_the_forward_pass(small: Small) -> None:
    program = lower(small("dense", "training.fsdp.prefetch=0"))
    level = levels(program, "gathered parameters")
    ends = max(number for number, task in enumerate(program.tasks) if task.phase == "forward")
    assert (level[ends], level[ends + 1]) == (2 * ROOT + 2 * LAYER, 2 * ROOT)


def test_ten_bytes_a_parameter_before_a_gradient_is_reduced_and_eight_while_it_is(small: Small) -> None:
    program = lower(small("dense"))
    level = levels(program, "gathered parameters", "gradients", "reduce buffers")
    names = [task.name for task in program.tasks]
    for layer in (1, 2):
        copy_in = names.index(f"copy-in layer {layer}")
        # The root's parameters and the gradients of the head; fp32 shards of the layers that are done.
        beside = 2 * ROOT + 2 * HEAD + (3 - layer) * 4 * LAYER / 16
        # Parameters 2, next buffer 2, gradients 2, and the input of the last reduction 4.
        assert level[copy_in - 1] == 10 * LAYER + beside
        # The next buffer 2, gradients 2, and an input in fp32 4.
        assert level[copy_in] == 8 * LAYER + beside


def test_each_layer_is_gathered_for_either_pass_and_the_root_once(small: Small) -> None:
    gathers = Counter(task.name for task in named(lower(small("dense")), "all-gather"))
    assert gathers == {"all-gather root": 1} | {f"all-gather layer {layer}": 2 for layer in range(4)}


def test_recomputation_uses_what_the_backward_pass_has_gathered(small: Small) -> None:
    program = lower(small("dense", "training.recompute=full"))
    assert len(named(program, "all-gather")) == 1 + 2 * 4


def test_without_resharding_each_layer_is_gathered_once_a_micro_batch(small: Small) -> None:
    program = lower(small("dense", "training.fsdp.reshard_after_forward=false"), micro_batches=2)
    assert len(named(program, "all-gather")) == 2 * (1 + 4)
    assert highest(program, "backward", 3, "gathered parameters") == 2 * ROOT + 4 * 2 * LAYER


def test_a_ring_of_sixteen_sends_fifteen_sixteenths_of_what_is_gathered(small: Small) -> None:
    program = lower(small("dense"))
    assert sent(named(program, "all-gather layer 2")) == 2 * 2 * LAYER * 15 / 16
    assert sent(named(program, "reduce-scatter")) == 4 * (4 * LAYER + ROOT) * 15 / 16


def test_a_frozen_base_is_never_reduced(small: Small) -> None:
    program = lower(small("dense", LORA))
    reduces = named(program, "reduce-scatter")
    assert [task.name for task in reduces] == [f"reduce-scatter layer {layer}" for layer in (3, 2, 1, 0)]
    assert sent(reduces) == 4 * 4 * ADAPTERS * 15 / 16


def test_replicas_reduce_their_shards_after_the_scatter(small: Small) -> None:
    program = lower(small("dense", "parallel.dp_replicate=2", "parallel.dp_shard=8"))
    scatter, reduction = named(program, "reduce-scatter layer 2")[0], named(program, "all-reduce layer 2")[0]
    assert reduction.deps == (program.tasks.index(scatter),)
    # Two members pass on half of the shard in each of two passes.
    assert sent([reduction]) == 2 * (4 * LAYER / 8) / 2
    assert sent([scatter]) == 4 * LAYER * 7 / 8


def test_sums_between_replicas_are_waited_for_at_the_end_of_a_backward_pass_alone(small: Small) -> None:
    narrow = "training.optimizer={master_weights: false, state_dtype: bf16}"
    program = lower(small("dense", "parallel.dp_replicate=2", "parallel.dp_shard=8", narrow))
    names = [task.name for task in program.tasks]
    sums = [number for number, name in enumerate(names) if name.startswith("all-reduce")]
    assert {program.tasks[number].stream for number in sums} == {"fsdp_all_reduce"}
    scattered = names.index("reduce-scatter layer 2")
    assert program.tasks[names.index("copy-in layer 1")].deps == (scattered,)
    update = next(task for task in program.tasks if task.phase == "optimizer")
    assert set(update.deps) == {*sums, names.index("reduce-scatter root")}
    # Shards in fp32 of four layers and the root stay beside the input of the last reduction.
    held = levels(program, "reduce buffers")
    assert held[sums[-1]] == 4 * (4 * LAYER + ROOT) / 8 + 4 * ROOT


def test_experts_are_gathered_by_the_ranks_that_hold_the_same_ones(small: Small) -> None:
    program = lower(small("mixture", "parallel.ep=8"))
    gather = named(program, "all-gather layer 1 experts")[0]
    # 16 experts over ep 8: two of 3 x 1024 x 512 elements on each of a pair of ranks.
    assert sent([gather]) == 2 * (2 * 3 * 1024 * 512) / 2
    assert gather.collective is not None
    assert gather.collective.groups.tolist() == list(range(8))


def test_gradients_of_experts_are_reduced_first_and_the_rest_of_the_layer_waits_for_the_layer_before(
    small: Small,
) -> None:
    program = lower(small("mixture", "parallel.ep=8"))
    names = [task.name for task in program.tasks]
    order = [name for name in names if name.startswith("reduce-scatter layer")]
    assert order[:4] == [f"reduce-scatter layer {layer}{part}" for layer in (3, 2) for part in (" experts", "")]
    before = tuple(names.index(name) for name in order[2:4])
    assert program.tasks[names.index("copy-in layer 1 experts")].deps == before
    assert program.tasks[names.index("copy-in layer 1")].deps == ()
    # Two experts of 3 x 1024 x 512 and, of attention, 4 x 1024 x 1024, a router of 16 x 1024 and norms of 2 x 1024 and
    # of 2 heads of 128, in fp32.
    rest = 4 * 1024 * 1024 + 16 * 1024 + 2 * 1024 + 2 * 128
    held = levels(program, "reduce buffers")[names.index("copy-in layer 1")]
    assert held == 4 * (2 * 3 * 1024 * 512 + rest)


def test_one_layer_is_gathered_ahead_and_none_without_prefetching(small: Small) -> None:
    def order(*overrides: str) -> list[str]:
        tasks = lower(small("dense", *overrides)).tasks
        return [t.name for t in tasks if t.phase == "forward" and t.name.split()[0] in {"all-gather", "copy-out"}]

    ahead = ["all-gather root", "copy-out root", "all-gather layer 0"]
    for layer in range(3):
        ahead += [f"copy-out layer {layer}", f"all-gather layer {layer + 1}"]
    assert order() == [*ahead, "copy-out layer 3"]
    alone = [
        f"{step} {unit}" for unit in ("root", *(f"layer {i}" for i in range(4))) for step in ("all-gather", "copy-out")
    ]
    assert order("training.fsdp.prefetch=0") == alone


def test_copy_out_waits_for_its_gather_and_the_next_gather_for_the_copy_out(small: Small) -> None:
    tasks = lower(small("dense")).tasks
    names = [task.name for task in tasks]
    gather, copy_out, copy_in, after = (
        names.index("all-gather layer 1"),
        names.index("copy-out layer 1"),
        names.index("gather copy-in layer 2"),
        names.index("all-gather layer 2"),
    )
    assert gather in tasks[copy_out].deps
    assert tasks[after].deps == (copy_in, copy_out)


def test_a_gather_that_nobody_asked_for_ahead_waits_for_no_compute(small: Small) -> None:
    tasks = lower(small("dense", "training.fsdp.prefetch=0")).tasks
    names = [task.name for task in tasks]
    root, copy_out = names.index("all-gather root"), names.index("copy-out layer 1")
    assert tasks[root].deps == (names.index("gather copy-in root"),)
    assert tasks[names.index("all-gather layer 2")].deps == (copy_out,)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.recompute=full", "training.loss=cut"),
        ("training.fsdp.reshard_after_forward=false",),
        ("training.fsdp.prefetch=0",),
        ("training.fsdp.prefetch=3", "training.loss=chunked", "training.execution=eager"),
        ("training.optimizer.master_weights=false", "training.fsdp.reduce_dtype=bf16", "training.execution=compiled"),
        (LORA, "training.recompute=full"),
        ("parallel.dp_replicate=2", "parallel.dp_shard=8"),
        ("parallel.dp_replicate=16", "parallel.dp_shard=1"),
    ],
)
def test_a_program_gives_back_all_that_it_takes(small: Small, kind: str, overrides: tuple[str, ...]) -> None:
    ep = ("parallel.ep=8",) if kind == "mixture" and "parallel.dp_shard=1" not in overrides else ()
    program = lower(small(kind, *overrides, *ep), micro_batches=3)
    behaviours = 8 if ep else 1
    ledger = account(program.tasks, program.resident, behaviours)["hbm"]
    assert ledger.left_bytes.tolist() == [0.0] * behaviours


def test_further_micro_batches_take_no_more_than_a_temporary_of_the_reduction(small: Small) -> None:
    def peak(micro_batches: int) -> float:
        program = lower(small("dense"), micro_batches)
        return float(account(program.tasks, program.resident, 1)["hbm"].peak_bytes[0])

    assert peak(3) == peak(2)
    # Gradients of all layers, in fp32 over 16 ranks, are there from the second on, and a reduced shard to add to them.
    assert 0 <= peak(2) - peak(1) <= 4 * (4 * LAYER + ROOT) / 16 + 4 * LAYER / 16


def test_hooks_of_a_unit_take_the_host_as_long_as_so_many_launches(small: Small) -> None:
    # 31 us a launch of a framework: 36 and 1.6 for each of a layer's 9 parameters forward, 35 and 1.7 backward, and 16
    # and 1.7 for its reduction, however the model runs.
    program = lower(small("dense", "training.execution=compiled"))
    opened = {(task.phase, task.host_ns) for task in named(program, "copy-out layer")}
    assert opened == {("forward", round((36 + 1.6 * 9) * 31_000)), ("backward", round((35 + 1.7 * 9) * 31_000))}
    # Beside it 3.1 ns for each 2,048 bytes of a rank's share in fp32.
    table = round(3.1 * LAYER / 16 * 4 / 2048)
    assert {task.host_ns for task in named(program, "copy-in layer")} == {round((16 + 1.7 * 9) * 31_000) + table}


def test_hooks_of_frozen_layers_reduce_adapters_alone(small: Small) -> None:
    # Two factors for each of four matrices of attention.
    reduced = named(lower(small("dense", LORA)), "copy-in layer")
    table = round(3.1 * ADAPTERS / 16 * 4 / 2048)
    assert {task.host_ns for task in reduced} == {round((16 + 1.7 * 8) * 31_000) + table}

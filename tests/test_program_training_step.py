from collections.abc import Iterable
from itertools import groupby

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.program.stage import StageProgram

# Kimi K3.1: 69 layers of delta attention, 24 of latent attention, 92 of them with 896 experts.
DELTA, LATENT, MIXTURE = 69, 24, 92
EXPERT = 3 * 3584 * 3072
BETWEEN_128 = 127 / 128


def sent(tasks: Iterable[Task], kind: str) -> np.ndarray:
    """Bytes that each behaviour sends in all tasks of *kind*."""
    return np.sum([task.collective.wire_bytes for task in tasks if task.kind == kind and task.collective], axis=0)


def adapters_gathered() -> int:
    """Elements of the main job's adapters as they are gathered: A of rank 8 padded to 128, B to a multiple of 128."""
    delta = 128 * (6 * 7168 + 128 + 12288) + 8 * (4 * 12288 + 128 + 12288 + 128 + 7168)
    latent = 128 * (3 * 7168 + 1536 + 512 + 12288) + 8 * (1536 + 18432 + 640 + 24576 + 12288 + 7168)
    shared = 128 * (2 * 7168 + 6144) + 8 * (2 * 6144 + 7168)
    projections = 128 * (7168 + 3584) + 8 * (3584 + 7168)
    return DELTA * delta + LATENT * latent + MIXTURE * (shared + projections)


def layers_gathered() -> int:
    """Elements of the main job's layers without experts, padded to 128 ranks."""
    attention = 30_618_088_704 + 5_572_706_304 + 178_526_208
    feed_forward = 726_663_168 + 590_955_008 + 4_727_310_336 + 12_155_092_992
    norms, mixes = 93 * 2 * 7168, 93 * 4 * 7168
    # Rows added: 96 to 128, 576 to 640, 32 to 128, and twice 1 to 128.
    padding = 7168 * (DELTA * 32 + LATENT * 64 + LATENT * 96 + 93 * 2 * 127)
    return attention + feed_forward + norms + mixes + padding


def test_what_the_main_job_gathers_in_a_micro_batch(main_job: StageProgram) -> None:
    # A pair of ranks shares 14 experts of each layer: half of them comes over the wire, in either pass.
    experts = 2 * MIXTURE * (2 * 14 * EXPERT) / 2
    layers = 2 * 2 * (layers_gathered() + adapters_gathered()) * BETWEEN_128
    # Embedding, head, two norms and a scoring vector padded from 1 row to 128.
    root = 2 * (2 * 163_840 * 7168 + 2 * 7168 + 128 * 7168) * BETWEEN_128
    gathered = sent(main_job.tasks, "all_gather")
    assert gathered == pytest.approx(np.full(64, experts + layers + root), rel=1e-12)
    assert gathered.max() == pytest.approx(311.3e9, rel=1e-3)


def test_what_the_main_job_reduces_in_a_micro_batch(main_job: StageProgram) -> None:
    reduced = sent(main_job.tasks, "reduce_scatter")
    assert reduced == pytest.approx(np.full(64, 4 * adapters_gathered() * BETWEEN_128), rel=1e-12)


def test_what_the_main_job_exchanges_in_a_micro_batch(main_job: StageProgram) -> None:
    # 8192 tokens visit 16 experts each in a width of 3584 (bf16), 63 of 64 on other ranks: dispatch and combine in the
    # forward pass, in its recomputation and in the backward pass. The mean rank; the hottest sends more home.
    exchanged = sent([task for task in main_job.tasks if task.name != "dispatch counts"], "all_to_all")
    assert exchanged.mean() == pytest.approx(8192 * 16 * 3584 * 2 * (1 - 1 / 64) * 6 * MIXTURE, rel=1e-12)
    assert exchanged.mean() == pytest.approx(1.5 * 346e9 * 63 / 64, rel=2e-3)
    assert exchanged.max() > 1.02 * exchanged.mean()


def test_every_row_of_the_main_job_reaches_one_expert(main_job: StageProgram) -> None:
    assert sorted(main_job.loads) == list(range(1, 93))
    for load in main_job.loads.values():
        assert load.rows.shape == (64, 14)
        assert load.rows.sum() == 64 * 8192 * 16
        assert load.own_rows == 8192 * 16


def test_recomputation_dispatches_again(main_job: StageProgram) -> None:
    dispatches = [task for task in main_job.tasks if task.name == "dispatch"]
    by_phase = {
        phase: sum(task.phase == phase for task in dispatches) for phase in ("forward", "recompute", "backward")
    }
    assert by_phase == {"forward": MIXTURE, "recompute": MIXTURE, "backward": MIXTURE}


def test_phases_follow_each_other_layer_by_layer(small: Small) -> None:
    program = lower(small("dense", "training.recompute=full"), micro_batches=2)
    compute = [(t.micro_batch, t.phase, t.layer) for t in program.tasks if t.stream == "compute"]
    once: list[tuple[str, int]] = [("forward", -1), *(("forward", layer) for layer in range(4)), ("forward", -1)]
    once.append(("backward", -1))
    for layer in (3, 2, 1, 0):
        # The copy-out of gathered parameters comes before, the copy of gradients behind.
        once += [("backward", layer), ("recompute", layer), ("backward", layer)]
    once.append(("backward", -1))
    expected = [(micro_batch, *part) for micro_batch in (0, 1) for part in once] + [(-1, "optimizer", -1)]
    assert [key for key, _ in groupby(compute)] == expected
    assert [program.tasks[end].micro_batch for end in program.micro_batch_ends] == [0, 1]


def test_a_dispatch_blocks_the_host_until_its_counts_are_known(small: Small) -> None:
    program = lower(small("mixture", "parallel.ep=8"))
    blocking = [task for task in program.tasks if task.blocks_host]
    assert [(task.name, task.phase) for task in blocking] == [("dispatch counts", "forward")] * 4
    assert not any(task.blocks_host for task in lower(small("mixture")).tasks)


def test_without_expert_parallelism_nothing_is_exchanged_and_no_rows_are_put_in_order(small: Small) -> None:
    names = {task.name for task in lower(small("mixture")).tasks}
    assert not any(task.kind == "all_to_all" for task in lower(small("mixture")).tasks)
    assert names.isdisjoint({"dispatch", "combine", "sort_by_expert", "sort_by_source"})
    assert {"sort_by_expert", "sort_by_source"} <= {t.name for t in lower(small("mixture", "parallel.ep=2")).tasks}


def test_the_expert_output_needs_the_exchange_and_the_exchange_the_permuted_rows(small: Small) -> None:
    tasks = lower(small("mixture", "parallel.ep=8")).tasks
    names = [task.name for task in tasks]
    ordered = ("dispatch ready", "dispatch counts", "dispatch", "sort_by_expert")
    ready, counts, dispatch, after = (names.index(name) for name in ordered)
    assert (tasks[counts].deps, tasks[dispatch].deps) == ((ready,), (counts,))
    assert dispatch in tasks[after].deps


def test_hot_ranks_compute_longer_and_hold_more(small: Small) -> None:
    program = lower(small("mixture", "parallel.ep=8", "routing.synthetic.sigma=1"))
    for layer, load in program.loads.items():
        tasks = [t for t in program.tasks if t.layer == layer and t.phase == "forward"]
        products = next(t for t in tasks if t.name == "experts_fc1")
        durations = np.asarray(products.duration_ns)
        assert durations[load.total_rows.argmax()] == durations.max() > durations[load.total_rows.argmin()]
        received = next(
            a for t in tasks if t.name == "dispatch" for a in t.allocates if a.kind == "communication buffers"
        )
        assert np.array_equal(received.bytes, load.total_rows * 1024 * 2)
        home = next(a for t in tasks if t.name == "combine" for a in t.allocates if a.kind == "communication buffers")
        assert home.bytes == 2048 * 2 * 1024 * 2


def test_balanced_routing_loads_every_rank_alike(small: Small) -> None:
    program = lower(small("mixture", "parallel.ep=8", "routing.synthetic.sigma=0"))
    for load in program.loads.values():
        assert set(load.rows.reshape(-1).tolist()) == {8 * 2048 * 2 // 16}


def test_inputs_are_kept_where_an_adapter_needs_them(small: Small) -> None:
    def saved(*overrides: str) -> float:
        tasks = lower(small("dense", *overrides)).tasks
        return sum(
            float(a.bytes)
            for t in tasks
            if t.layer == 1 and t.phase == "forward"
            for a in t.allocates
            if a.kind == "saved activations"
        )

    base, rank = saved("training.lora={rank: 16, targets: [attention]}"), 16
    both = saved("training.lora={rank: 16, targets: [attention, mlp]}")
    # An mlp adapter keeps the part's input (1024 wide) and the activation (4096) for A, and x A of three layers for B.
    assert both - base == 2048 * 2 * (1024 + 4096 + 3 * rank)
    # That is all that full training keeps, and x A of seven layers.
    assert both == saved() + 2048 * 2 * 7 * rank

import numpy as np
import pytest
from small_jobs import Small

from simulator.engine.task import Task
from simulator.forecast.assembly import assemble_job
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.program.flops import model_flops
from simulator.program.image_load import dealt, evened
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

# A tower of 3 blocks, 256 wide, 4 heads, 1,024 inside; 2 x 2 patches of 16 x 16 pixels make a token 1,024 wide. Images
# of 256 x 256 pixels have 256 patches and make 64 tokens.
H, INNER, BLOCKS, PATCHES, TOKENS, D = 256, 1024, 3, 256, 64, 1024
PIXELS = 3 * 16 * 16 * 2
BLOCK_PRODUCTS = 3 * H * H + H * H + 2 * H * INNER
MERGER_PRODUCTS = 4 * H * 4 * H + 4 * H * D


def images(*counts: int, more: str = "") -> str:
    return f"training.images={{height: 256, width: 256, per_sequence: {list(counts)}{more}}}"


UNLIKE = images(0, 2, 0, 24)


def stages(small: Small, *overrides: str, kind: str = "seeing") -> tuple[StageProgram, ...]:
    return TrainingStep(assemble_job(*small(kind, *overrides))).programs(1)


def vision(program: StageProgram, phase: str = "forward") -> list[Task]:
    return [task for task in program.tasks if task.name.startswith("vision ") and task.phase == phase]


def at(amount: float | np.ndarray, behaviour: int) -> float:
    return float(amount[behaviour]) if isinstance(amount, np.ndarray) else float(amount)


def of_rank(program: StageProgram, behaviour: int) -> list[tuple[str, float, list[float]]]:
    """Names, times and bytes of the tower's tasks on one behaviour."""
    return [
        (
            task.name,
            at(task.duration_ns, behaviour),
            [at(a.bytes, behaviour) for a in task.allocates if a.kind == "saved activations"],
        )
        for phase in ("forward", "recompute", "backward")
        for task in vision(program, phase)
    ]


def test_model_flops_of_images_are_those_of_the_formula(small: Small) -> None:
    without, with_images = (model_flops(assemble_job(*small("seeing", *o))) for o in ((), (images(4),)))
    # A patch and block 2 (3 h h + h h + 2 h i) and 4 h S for attention over the image's S patches; 2 x 2 matrices of a
    # merger for each token, and a second merger for deepstack. Three times that, and twice the patch embedding, whose
    # pixels need no gradient.
    blocks = BLOCKS * PATCHES * (2 * BLOCK_PRODUCTS + 4 * H * PATCHES)
    mergers = 2 * TOKENS * 2 * MERGER_PRODUCTS
    formula = 4 * (3 * (blocks + mergers) + 2 * PATCHES * 2 * PIXELS * H)
    assert with_images - without == pytest.approx(formula, rel=0.02)
    assert with_images - without > formula


def test_model_flops_without_the_gradients_of_a_frozen_tower(small: Small) -> None:
    without, frozen, both = (
        model_flops(assemble_job(*small("seeing", *o)))
        for o in ((), (images(4, more=", frozen: [tower]"),), (images(4, more=", frozen: [tower, projector]"),))
    )
    forward = BLOCKS * PATCHES * (2 * BLOCK_PRODUCTS + 4 * H * PATCHES) + PATCHES * 2 * PIXELS * H
    merger = 2 * TOKENS * 2 * MERGER_PRODUCTS
    assert both - without == pytest.approx(4 * (forward + merger), rel=0.02)
    # A merger's norm is trained, so that both its matrices hand gradients on; the tower gets none.
    assert frozen - both == pytest.approx(4 * 2 * merger, rel=0.02)


def test_every_rank_does_what_it_would_if_all_had_as_many_images(small: Small) -> None:
    program = stages(small, UNLIKE)[0]
    for behaviour, count in enumerate((0, 2, 24)):
        assert of_rank(program, behaviour) == of_rank(stages(small, images(count, 5))[0], 0)
    alike = stages(small, images(24))[0]
    assert of_rank(program, 2) == of_rank(alike, 0)
    assert all(isinstance(task.duration_ns, int) for task in vision(alike))


def test_a_rank_without_images_encodes_the_smallest_there_is(small: Small) -> None:
    whole, none = (stages(small, images(count, 2))[0] for count in (1, 0))
    embedded = [next(t for t in vision(p) if t.name == "vision patch_embed") for p in (whole, none)]
    sizes = [next(a for a in t.allocates if a.kind == "saved activations").bytes for t in embedded]
    assert np.asarray(sizes[0]).tolist() == [PATCHES * 2 * PIXELS, 2 * PATCHES * 2 * PIXELS]
    assert np.asarray(sizes[1]).tolist() == [4 * 2 * PIXELS, 2 * PATCHES * 2 * PIXELS]


def test_the_tower_is_one_unit_gathered_for_either_pass(small: Small) -> None:
    program = stages(small, UNLIKE)[0]
    gathers = [task for task in program.tasks if task.name == "all-gather vision"]
    assert [task.phase for task in gathers] == ["forward", "backward"]
    assert [task.name for task in program.tasks if task.name == "reduce-scatter vision"] == ["reduce-scatter vision"]
    # Patch embedding, positions, blocks with two norms; the deepstack merger has a wide norm, the last a narrow one.
    tower = PIXELS * H + H + 1024 * H + BLOCKS * (BLOCK_PRODUCTS + 3 * H + H + INNER + H + 4 * H)
    projector = 2 * (MERGER_PRODUCTS + 4 * H + D) + 2 * 4 * H + 2 * H
    assert program.layout.vision is not None
    assert program.layout.vision.groups[0].elements == tower + projector


def test_a_batch_of_text_never_gathers_the_tower(small: Small) -> None:
    program = stages(small)[0]
    assert program.layout.vision is not None
    assert not any("vision" in task.name for task in program.tasks)


def test_the_tower_runs_before_the_embedding_and_its_tokens_are_placed_behind_it(small: Small) -> None:
    names = [task.name for task in stages(small, UNLIKE)[0].tasks]
    order = [names.index(name) for name in ("vision patch_embed", "vision proj.2", "embedding", "place_images")]
    assert order == sorted(order)
    assert names[-1 - names[::-1].index("embedding")] == "embedding"
    behind = names[len(names) - 1 - names[::-1].index("embedding") :]
    assert "vision patch_embed" in behind


@pytest.mark.parametrize(
    ("setting", "phases"),
    [
        ((images(4),), {"forward", "backward"}),
        ((images(4), "training.recompute=full"), {"forward", "recompute", "backward"}),
        ((images(4, more=", frozen: [tower, projector]"), "training.recompute=full"), {"forward"}),
        ((images(4), "training.lora={rank: 8}"), {"forward"}),
    ],
)
def test_passes_of_the_tower(small: Small, setting: tuple[str, ...], phases: set[str]) -> None:
    program = stages(small, *setting)[0]
    assert {task.phase for task in program.tasks if task.name.startswith("vision ")} == phases
    if phases == {"forward"}:
        assert not any(a.kind != "workspace" for task in vision(program) for a in task.allocates)


def test_a_trained_projector_behind_a_frozen_tower_needs_no_gradient_of_the_tower(small: Small) -> None:
    program = stages(small, images(4, more=", frozen: [tower]"))[0]
    names = {task.name for task in vision(program, "backward")}
    assert names == {
        "vision pre_norm", "vision proj.0", "vision proj_activation", "vision proj.2", "vision deepstack.1.norm",
        "vision deepstack.1.proj.0", "vision deepstack.1.proj_activation", "vision deepstack.1.proj.2",
    }  # fmt: skip
    (group,) = program.layout.vision.groups if program.layout.vision else ()
    assert group.trained_elements == 2 * (MERGER_PRODUCTS + 4 * H + D) + 2 * 4 * H + 2 * H


def test_recomputed_blocks_keep_their_input_for_every_rank(small: Small) -> None:
    program = stages(small, UNLIKE, "training.recompute=full")[0]
    kept = [a.bytes for task in vision(program) for a in task.allocates if a.key.endswith(".input")]
    assert [np.asarray(size).tolist() for size in kept] == [[4 * 2 * H, 2 * 256 * 2 * H, 24 * 256 * 2 * H]] * BLOCKS


def test_only_the_first_stage_sees_images(small: Small) -> None:
    first, second = stages(small, UNLIKE, "parallel={pp: 2, dp_shard: 8}")
    assert vision(first)
    assert not vision(second)
    assert second.layout.vision is None


def test_ranks_that_share_sequences_encode_the_same_images(small: Small) -> None:
    job = assemble_job(*small("seeing", UNLIKE, "parallel={tp: 2, cp: 2, dp_shard: 4}"))
    assert job.images is not None
    assert job.images.of_ranks(job.mesh).tolist() == [0] * 4 + [2] * 4 + [0] * 4 + [24] * 4
    own = next(t for t in TrainingStep(job).programs(1)[0].tasks if t.name == "place_images")
    whole = next(t for t in stages(small, UNLIKE)[0].tasks if t.name == "place_images")
    assert np.max(own.duration_ns) < np.max(whole.duration_ns)


def test_images_are_dealt_in_order_and_evened_without_loss() -> None:
    counts = dealt(np.array([0, 1, 4, 2, 0, 1, 4, 2]), 4)
    assert counts.tolist() == [1, 6, 1, 6]
    assert evened(counts).tolist() == [4, 4, 3, 3]


def test_synthetic_numbers_are_seeded_and_fit_into_their_sequence(small: Small) -> None:
    law = "training.images={{height: 256, width: 256, synthetic: {{mean: 16, sigma: {}, seed: {}}}}}"
    drawn = [assemble_job(*small("seeing", law.format(*o))).images for o in ((1, 0), (1, 0), (1, 1), (0, 0))]
    counts = [load.counts.tolist() for load in drawn if load is not None]
    assert counts[0] == counts[1] != counts[2]
    assert max(counts[0]) == 2048 // TOKENS
    assert counts[3] == [16] * 16


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("seeing", ()),
        ("seeing", ("training.recompute=full", "parallel={tp: 2, dp_shard: 8}")),
        ("seeing", ("parallel={pp: 2, dp_shard: 8}", "training.global_batch_sequences=64")),
        ("seeing", ("training.zero=1",)),
        ("seeing-mixture", ("parallel.ep=8", "routing.synthetic.sigma=0.5")),
    ],
)
def test_folded_and_unfolded_steps_are_equal(small: Small, kind: str, settings: tuple[str, ...]) -> None:
    read = small(kind, images(0, 2, 1, 24, 3, 0, 0, 7), *settings)
    folded, apart = forecast(*read).summary, forecast(*read, fold=False).summary
    assert folded["engine"]["classes"] < apart["engine"]["classes"]
    assert folded["step_time_s"]["p50"] == pytest.approx(apart["step_time_s"]["p50"], rel=1e-9)
    assert folded["memory"]["hbm"]["peak_bytes"] == apart["memory"]["hbm"]["peak_bytes"]
    for part, seconds in folded["time"].items():
        assert seconds == pytest.approx(apart["time"][part], rel=1e-6, abs=1e-9)


def test_unlike_images_cost_waiting_and_memory_that_even_ones_give_back(small: Small) -> None:
    # Large enough that kernels outlast the launches of compiled code and the hooks around units.
    asked = "training.images={{height: 1024, width: 1024, per_sequence: [0, 0, 0, 8], even: {}}}"
    long = "training.sequence_length=8192", "training.execution=compiled"
    unlike, even = (forecast(*small("tower", *long, asked.format(even))).summary for even in ("false", "true"))
    assert unlike["images"] == {
        "per_rank_mean": 2,
        "per_rank_max": 8,
        "rank_max_over_mean": 4,
        "tokens_per_image": 1024,
        "share_of_sequence": 1 / 4,
    }
    assert (even["images"]["per_rank_mean"], even["images"]["per_rank_max"]) == (2, 2)
    assert unlike["step_time_s"]["p50"] > 1.1 * even["step_time_s"]["p50"]
    assert unlike["time"]["compute_s"] == pytest.approx(even["time"]["compute_s"], rel=0.02)
    # What a step is longer by, ranks spend waiting for each other; the host held even ones up for a part of it.
    longer = unlike["step_time_s"]["p50"] - even["step_time_s"]["p50"]
    assert unlike["time"]["imbalance_s"] - even["time"]["imbalance_s"] == pytest.approx(longer, rel=0.2)
    peaks = [found["memory"]["hbm"]["peak_bytes"] for found in (unlike, even)]
    assert peaks[0] > peaks[1]


def test_the_tower_of_the_main_job_is_frozen_and_leaves_nothing_behind() -> None:
    read = read_scenario("kimi-k3-lora-128xh200", ["training.images={height: 896, width: 896, per_sequence: [4]}"])
    program = TrainingStep(assemble_job(*read)).programs(1)[0]
    # 64 x 64 patches an image: 2 (1024 x 4608 + 1536 x 1024 + 2 x 1024 x 4096) FLOPs a patch and block.
    assert not vision(program, "backward")
    assert sum(task.name == "vision attention" for task in program.tasks) == 27

from pathlib import Path

import pytest
from small_jobs import Small, lower

from simulator.forecast.assembly import assemble_job, find_architecture
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.model.census import census
from simulator.model.parameters import mtp_module_parameters
from simulator.program.flops import model_flops
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

ONE, TWO = "training.multi_token_prediction=1", "training.multi_token_prediction=2"
T, D, V, EXPERTS, TOP, F = 2048, 1024, 2048, 16, 2, 512
ATTENTION = 4 * D * D
LAYER = ATTENTION + 2 * 128 + EXPERTS * D + EXPERTS * 3 * D * F + 2 * D
MODULE = LAYER + 2 * D * D + 3 * D


def stages(small: Small, *overrides: str) -> tuple[StageProgram, ...]:
    return TrainingStep(assemble_job(*small("predicting", *overrides))).programs(1)


def held(program: StageProgram) -> dict[str, int]:
    return {unit.name: sum(group.elements for group in unit.groups) for unit in program.layout.layers}


def count(program: StageProgram, name: str, phase: str = "forward") -> int:
    return sum(task.name == name and task.phase == phase for task in program.tasks)


def test_deepseek_v3_has_671_billion_parameters_without_its_module_and_685_with_it_as_published() -> None:
    model = find_architecture("deepseek-v3", Path())
    module = sum(parameter.elements for parameter in mtp_module_parameters(model))
    # A layer, its projection and three norms; the checkpoint, "685B", holds copies of the embedding and the head too.
    assert module == 187_107_328 + 257 * 3 * 7168 * 2048 + 256 * 7168 + 256 + 2 * 7168 + 2 * 7168**2 + 3 * 7168
    assert census(model).total_parameters == 671_026_419_200
    assert 671_026_419_200 + module + 2 * 129_280 * 7168 == pytest.approx(684.5e9, rel=1e-4)


def test_modules_are_off_unless_asked_for(small: Small) -> None:
    program = stages(small)[0]
    assert list(held(program)) == ["layer 0", "layer 1", "layer 2", "layer 3"]
    assert count(program, "eh_proj") == 0


def test_a_module_is_a_layer_with_a_projection_and_three_norms_more(small: Small) -> None:
    sizes = held(stages(small, TWO)[0])
    assert list(sizes)[3:] == ["layer 3", "prediction module 0", "prediction module 1"]
    assert sizes["layer 3"] == LAYER
    assert sizes["prediction module 0"] == sizes["prediction module 1"] == MODULE


def test_every_module_runs_the_embedding_and_the_head_once_more(small: Small) -> None:
    program = stages(small, TWO)[0]
    for phase in ("forward", "backward"):
        assert [count(program, name, phase) for name in ("embedding", "eh_proj", "lm_head", "cross_entropy")] == [
            3, 2, 3, 3,
        ]  # fmt: skip
    assert {task.layer for task in program.tasks if task.name == "eh_proj"} == {4, 5}


def test_model_flops_of_a_module(small: Small) -> None:
    less, more = (model_flops(assemble_job(*small("predicting", *o))) for o in ((), (ONE,)))
    products = ATTENTION + EXPERTS * D + TOP * 3 * D * F + 2 * D * D + D * V
    pairs = T * (T + 1) / 2
    # Three times the forward pass: 2 FLOPs a weight and token, 4 D a pair of tokens.
    matmuls = 3 * (2 * T * products + 4 * D * pairs)
    assert more - less == pytest.approx(matmuls, rel=0.01)
    assert more - less > matmuls


def test_the_last_stage_holds_modules_and_a_copy_of_the_embedding(small: Small) -> None:
    first, last = stages(small, TWO, "parallel={pp: 2, dp_shard: 8}")
    assert list(held(first)) == ["layer 0", "layer 1"]
    assert list(held(last)) == ["layer 2", "layer 3", "prediction module 0", "prediction module 1"]
    roots = [sum(group.elements for group in program.layout.root.groups) for program in (first, last)]
    assert roots == [V * D, 2 * V * D + D]
    assert [count(program, "embedding") for program in (first, last)] == [1, 2]


def test_logits_of_all_losses_are_alive_at_once(small: Small) -> None:
    logits = [
        sum(a.bytes for task in stages(small, *o)[0].tasks for a in task.allocates if a.kind == "logits")
        for o in ((), (TWO,))
    ]
    assert logits == [2 * T * V, 3 * 2 * T * V]
    tasks = stages(small, TWO)[0].tasks
    losses = [(task.name, task.phase) for task in tasks if task.name == "cross_entropy"]
    assert losses == [("cross_entropy", "forward")] * 3 + [("cross_entropy", "backward")] * 3


def test_recomputation_keeps_the_embedding_of_a_module_and_not_the_states_that_the_final_norm_keeps(
    small: Small,
) -> None:
    inputs = {
        a.key.removeprefix("0 "): a.bytes
        for task in stages(small, TWO, "training.recompute=full")[0].tasks
        for a in task.allocates
        if a.key.endswith(".input")
    }
    assert inputs["layer 3.input"] == inputs["prediction module 0.input"] == 2 * T * D
    assert inputs["prediction module 1.input"] == 2 * 2 * T * D


def test_tensor_parallel_ranks_share_the_projection(small: Small) -> None:
    program = stages(small, ONE, "parallel={tp: 2, dp_shard: 8}")[0]
    unit = program.layout.layers[-1]
    share = ATTENTION // 2 + 2 * 128 + EXPERTS * D + 2 * D + 2 * D * D // 2 + 3 * D
    assert unit.groups[0].elements == share
    at = next(i for i, task in enumerate(program.tasks) if task.name == "eh_proj")
    around = [task for task in program.tasks[at - 3 : at + 4] if task.stream == "tp"]
    # Before it the normed pair, twice as wide; behind it the columns of the other rank: half of either is sent.
    sent = [task.collective.wire_bytes.max() for task in around if task.collective]
    assert sent == [2 * T * 2 * D / 2, 2 * T * D / 2]


def test_adapters_of_a_module_are_trained_beside_its_frozen_weights(small: Small) -> None:
    program = stages(small, ONE, "training.lora={rank: 8, targets: [attention]}")[0]
    (dense, experts) = program.layout.layers[-1].groups
    assert dense.trained_elements == 4 * 8 * (D + D)
    assert dense.frozen_elements + experts.frozen_elements == MODULE


def test_experts_of_a_module_have_a_load_of_their_own(small: Small) -> None:
    program = stages(small, TWO, "parallel.ep=8", "routing.synthetic.sigma=1")[0]
    assert sorted(program.loads) == [0, 1, 2, 3, 4, 5]
    for load in program.loads.values():
        assert load.rows.sum() == program.loads[0].rows.sum()
    assert count(program, "dispatch") == 6


def test_folded_and_unfolded_steps_are_equal(small: Small) -> None:
    read = small("predicting", TWO, "parallel.ep=8", "routing.synthetic.sigma=0.5")
    folded, apart = forecast(*read).summary, forecast(*read, fold=False).summary
    assert folded["step_time_s"]["p50"] == pytest.approx(apart["step_time_s"]["p50"], rel=1e-9)
    assert folded["memory"]["hbm"]["peak_bytes"] == apart["memory"]["hbm"]["peak_bytes"]


@pytest.mark.parametrize("setting", ["training.zero=1", "training.loss=cut", "training.execution=eager"])
def test_a_module_costs_time_and_memory_however_the_step_runs(small: Small, setting: str) -> None:
    less, more = (forecast(*small("predicting", setting, *o)).summary for o in ((), (ONE,)))
    assert more["step_time_s"]["p50"] > less["step_time_s"]["p50"]
    assert more["memory"]["hbm"]["peak_bytes"] > less["memory"]["hbm"]["peak_bytes"]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("deepseek-v3-ep64-256xh200", "found 2, but deepseek_v3's config.json has 1 such modules; allowed: 0 to 1"),
        ("kimi-k3-lora-128xh200", "found 2, but kimi_k31's config.json has 0 such modules; allowed: 0"),
    ],
)
def test_more_modules_than_the_model_has_are_refused(scenario: str, message: str) -> None:
    with pytest.raises(Refused) as error:
        assemble_job(*read_scenario(scenario, [TWO]))
    assert error.value.messages == (f"training.multi_token_prediction: {message}",)


def test_what_a_stage_gathers_and_frees_is_balanced(small: Small) -> None:
    program = lower(small("predicting", TWO), micro_batches=2)
    taken = [a.key for task in program.tasks for a in task.allocates]
    assert sorted(taken) == sorted(key for task in program.tasks for key in task.releases)

"""Products beside transfers of other parts, as tasks, and what a step gains; two ranks share a small dense layer."""

import pytest
from small_jobs import Small, lower

from simulator.engine.task import Task
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast

COMPILED = ("parallel={dp_shard: 8, tp: 2}", "training.execution=compiled")
FUSED = ("parallel={dp_shard: 8, tp: 2}", "training.zero=1")
OVERLAP = "training.overlap_tensor_parallel=true"
LONG = ("training.sequence_length=8192", "training.micro_batch_sequences=8", "training.global_batch_sequences=64")
"""So long that kernels, not their launches, decide."""


def layer(tasks: list[Task], phase: str) -> list[int]:
    """Positions of what the first layer computes and sends between tp ranks."""
    return [n for n, t in enumerate(tasks) if (t.phase, t.layer) == (phase, 0) and t.stream in ("compute", "tp")]


def names(tasks: list[Task], positions: list[int]) -> list[str]:
    return [tasks[n].name for n in positions]


def test_the_first_part_is_there_and_the_second_comes_beside_its_products(small: Small) -> None:
    tasks = lower(small("dense", *COMPILED, OVERLAP)).tasks
    found = layer(tasks, "forward")
    start = names(tasks, found).index("tp_gather ready")
    ready, fetched, *products = found[start : start + 8]
    qkv = ["q_proj", "k_proj", "v_proj"]
    assert names(tasks, [fetched, *products]) == ["tp_gather", *qkv, *qkv]
    assert tasks[fetched].deps == (ready,)
    # a rank's own part waits for the copy into its buffer, which is ahead of it on the same stream
    assert tasks[products[0]].deps == (ready,)
    assert tasks[products[3]].deps == (fetched,)


def test_each_part_of_a_sum_leaves_when_it_is_there_and_the_own_one_stays(small: Small) -> None:
    tasks = lower(small("dense", *COMPILED, OVERLAP)).tasks
    found = layer(tasks, "forward")
    start = names(tasks, found).index("o_proj")
    first, sent, own, summed = found[start : start + 4]
    assert names(tasks, [first, sent, own, summed]) == ["o_proj", "tp_scatter", "o_proj", "tp_scatter"]
    assert tasks[sent].deps == (first,)
    assert (tasks[summed].stream, tasks[summed].deps) == ("compute", (sent,))


def test_user_buffers_scatter_four_parts_and_the_last_is_exposed(small: Small) -> None:
    tasks = lower(small("dense", *FUSED, OVERLAP)).tasks
    found = layer(tasks, "forward")
    start = names(tasks, found).index("o_proj")
    assert names(tasks, found[start : start + 9]) == ["o_proj", "tp_scatter"] * 4 + ["mixer_add"]
    parts = found[start : start + 8]
    assert [tasks[n].deps for n in parts[1::2]] == [(n,) for n in parts[::2]]
    assert tasks[found[start + 8]].deps == tuple(parts[1::2])


def test_the_input_comes_beside_its_gradient_and_that_goes_beside_the_weights(small: Small) -> None:
    tasks = lower(small("dense", *FUSED, OVERLAP)).tasks
    found = layer(tasks, "backward")
    start = names(tasks, found).index("qkv_proj ready")
    ready, gathered, inputs, scattered, weights, after = found[start : start + 6]
    assert [tasks[n].kind for n in (gathered, scattered)] == ["all_gather", "reduce_scatter"]
    assert (tasks[gathered].deps, tasks[scattered].deps) == ((ready,), (inputs,))
    assert (tasks[inputs].deps, tasks[weights].deps) == ((), (gathered,))
    assert tasks[after].deps == (scattered,)


def test_copy_engines_take_nothing_from_compute_and_user_buffers_sixteen_units(small: Small) -> None:
    tasks = lower(small("dense", *FUSED, OVERLAP)).tasks
    taken = {
        t.kind: float(t.collective.compute_taken) for t in tasks if t.collective and t.stream == "tp" and t.layer == 0
    }
    assert taken == {"send": 0.0, "reduce_scatter": pytest.approx(16 / 132), "all_gather": pytest.approx(16 / 132)}


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("stack", [COMPILED, FUSED], ids=["compiled", "fused"])
def test_a_step_waits_less_for_tensor_parallelism(small: Small, stack: tuple[str, ...], recompute: str) -> None:
    job = (*stack, *LONG, f"training.recompute={recompute}")
    alone, beside = (forecast(*small("dense", *job, *more)).summary for more in ((), (OVERLAP,)))
    assert beside["time"]["exposed_tp_s"] < 0.75 * alone["time"]["exposed_tp_s"]
    assert beside["step_time_s"]["p50"] < alone["step_time_s"]["p50"]


def test_parts_compute_all_rows_at_a_lower_rate(small: Small) -> None:
    whole, parts = (lower(small("dense", *COMPILED, *LONG, *more)).tasks for more in ((), (OVERLAP,)))

    def computed(tasks: list[Task]) -> int:
        return sum(int(tasks[n].duration_ns) for n in layer(tasks, "forward") if tasks[n].name == "down")

    assert computed(whole) < computed(parts) < 1.5 * computed(whole)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("training.execution=compiled",), "tp is 1 and nothing is sent; allowed: false, or parallel.tp above 1"),
        ((*COMPILED, "training.sequence_parallel=false"), "allowed: sequence_parallel true"),
        (("parallel={dp_shard: 8, tp: 2}", "training.execution=eager"), "found execution eager under zero 3"),
        (("parallel={dp_shard: 8, tp: 2}",), "allowed: execution compiled (PyTorch), or fused under zero 1"),
        ((*COMPILED, "training.lora={targets: [attention]}"), "products of adapters are not cut into parts"),
    ],
)
def test_what_cannot_be_is_refused(small: Small, overrides: tuple[str, ...], told: str) -> None:
    with pytest.raises(Refused) as refused:
        lower(small("dense", *overrides, OVERLAP))
    assert told in str(refused.value)


def test_latent_attention_has_no_user_buffers(small: Small) -> None:
    with pytest.raises(
        Refused, match="found latent_attention, but Megatron-LM has buffers for grouped attention alone"
    ):
        lower(small("latent", *FUSED, OVERLAP))

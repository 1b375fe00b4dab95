import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.simulation import Part, Simulation
from simulator.forecast.errors import Refused
from simulator.program.stage import StageProgram

MIB = 2**20
INPUT = 4 * MIB
"""A layer's input: 2048 tokens x 1024 channels x 2 bytes."""
LAYERS = 4


def moved(program: StageProgram, kind: str, name: str = "") -> list[float]:
    tasks = [task for task in program.tasks if task.kind == kind and name in task.name]
    return [float(task.collective.wire_bytes) for task in tasks]


def peaks(program: StageProgram) -> dict[str, dict[str, float]]:
    ledgers = account(program.tasks, [*program.resident, *program.born], 1)
    assert all(abs(ledger.left_bytes).max() == 0 for ledger in ledgers.values())
    return {tier: ledger.breakdown(0) for tier, ledger in ledgers.items()}


@pytest.mark.parametrize("way", ["save_on_cpu", "streamed"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_goes_out_and_is_evicted_comes_back(small: Small, way: str, recompute: str) -> None:
    program = lower(small("dense", f"training.offload.activations={way}", f"training.recompute={recompute}"))
    out, into = sum(moved(program, "copy_out")), sum(moved(program, "copy_in"))
    assert 0 < into <= out
    assert (into == out) == (way == "save_on_cpu")
    peaks(program)


def test_of_layers_that_run_again_the_input_travels(small: Small) -> None:
    program = lower(small("dense", "training.offload.activations=save_on_cpu", "training.recompute=full"))
    assert moved(program, "copy_out", "layer input") == [INPUT] * LAYERS
    assert moved(program, "copy_in", "layer input") == [INPUT] * LAYERS
    assert peaks(program)["ddr"]["saved activations"] >= INPUT * LAYERS


def test_save_on_cpu_copies_weights_and_what_two_nodes_keep_twice(small: Small) -> None:
    settings = ("training.execution=eager", "training.optimizer.master_weights=false")
    every = lower(small("dense", *settings, "training.offload.activations=save_on_cpu"))
    once = lower(small("dense", *settings, "training.offload.activations=streamed"))
    # Eager RMSNorm keeps the fp32 copy (8 MiB) twice and the normalised product (4 MiB, read by q, k and v) with it.
    assert moved(every, "copy_out", "input_layernorm")[0] == 2 * 8 * MIB + 4 * MIB
    assert moved(once, "copy_out", "input_layernorm")[0] == 8 * MIB + 4 * MIB
    # Three products keep that input, and each its matrix of 1024 x 1024.
    assert moved(every, "copy_out", "q_proj")[0] == 3 * INPUT + 2 * MIB
    assert moved(once, "copy_out", "q_proj")[0] == INPUT


def test_the_host_waits_for_copies_out_of_save_on_cpu_alone(small: Small) -> None:
    for way, waits in (("save_on_cpu", True), ("streamed", False)):
        program = lower(small("dense", f"training.offload.activations={way}"))
        assert {task.blocks_host for task in program.tasks if task.kind == "copy_out"} == {waits}


def test_streamed_copies_run_beside_compute(small: Small) -> None:
    def step_ns(*overrides: str) -> int:
        return Simulation(Part(lower(small("dense", "training.recompute=full", *overrides)).tasks, 1)).run()[0].step_ns

    plain, streamed, waiting = (
        step_ns(),
        step_ns("training.offload.activations=streamed"),
        step_ns("training.offload.activations=save_on_cpu"),
    )
    assert plain <= streamed < waiting


def test_device_memory_shrinks_by_what_is_away(small: Small) -> None:
    longer = ("training.sequence_length=8192", "training.loss=cut", "training.global_batch_sequences=16")
    kept = peaks(lower(small("dense", *longer)))
    away = peaks(lower(small("dense", *longer, "training.offload.activations=streamed")))
    assert kept["hbm"]["saved activations"] > 4 * away["hbm"].get("saved activations", 0.0)
    assert away["ddr"]["saved activations"] > 0.8 * kept["hbm"]["saved activations"]


@pytest.mark.parametrize("kind", ["mixture", "latent", "predicting"])
def test_every_kind_of_layer_gives_back_what_it_takes(small: Small, kind: str) -> None:
    for way in ("save_on_cpu", "streamed"):
        program = lower(small(kind, f"training.offload.activations={way}"), 2)
        assert not any(abs(ledger.left_bytes).max() for ledger in account(program.tasks, (), 1).values())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.recompute.keep=matmuls", "selective recomputation"),
        ("training.float8.recipe=rowwise", "eight-bit copies"),
    ],
)
def test_what_does_not_go_together_is_refused(small: Small, override: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        lower(small("dense", "training.offload.activations=streamed", override))

import pytest
from small_jobs import Small, lower

from simulator.engine.ledger import account
from simulator.engine.simulation import Part, Simulation
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.model.recompute import WHOLE
from simulator.program.stage import StageProgram
from simulator.program.swap import Swap, ordinals
from simulator.program.training_step import TrainingStep

MIB = 2**20
HIDDEN = 4 * MIB
"""2048 tokens x 1024 channels x 2 bytes."""
LAYERS = 4
FULL = "training.recompute=full"


def ran(program: StageProgram, name: str, phase: str) -> int:
    return sum(task.name == name and task.phase == phase for task in program.tasks)


def moved(program: StageProgram, kind: str, name: str = "") -> list[float]:
    return [float(task.collective.wire_bytes) for task in program.tasks if task.kind == kind and name in task.name]


def kept_forward(program: StageProgram) -> float:
    """Bytes on the card that the layers' forward passes leave for their backward passes, wherever they go then."""
    taken = [item for task in program.tasks if task.phase == "forward" for item in task.allocates]
    return sum(float(a.bytes) for a in taken if a.kind == "saved activations" and a.tier == "hbm" and "layer" in a.key)


def peaks(program: StageProgram, behaviours: int = 1) -> dict[str, dict[str, float]]:
    ledgers = account(program.tasks, [*program.resident, *program.born], behaviours)
    assert all(abs(ledger.left_bytes).max() == 0 for ledger in ledgers.values())
    return {tier: ledger.breakdown(0) for tier, ledger in ledgers.items()}


def test_shares_are_spread_over_the_layers_of_a_make() -> None:
    swap = Swap(host={"fc1": 0.5}, card={"fc1": 0.25})
    placed = [swap.placed(WHOLE, number) for number in range(8)]
    assert [bool(one.away) for one in placed] == [False, True] * 4
    assert [bool(one.results) for one in placed] == [False, False, True, False] * 2
    assert ordinals(["kda", "kda", "mla", "kda", "mla"]) == [0, 1, 0, 2, 1]


def test_of_layers_that_keep_all_the_named_operators_tensors_travel(small: Small) -> None:
    program = lower(small("dense", "training.swap.operators={down: 1.0}"))
    # 2048 x 4096 x 2 bytes go out of every layer; those of the last are still there when they are needed.
    assert moved(program, "copy_out") == [16 * MIB] * LAYERS
    assert moved(program, "copy_in") == [16 * MIB] * (LAYERS - 1)
    assert peaks(program)["ddr"]["saved activations"] == 16 * MIB * LAYERS


def test_a_share_of_the_layers_swaps(small: Small) -> None:
    program = lower(small("dense", "training.swap.operators={down: 0.5}"))
    assert [task.layer for task in program.tasks if task.kind == "copy_out"] == [1, 3]


@pytest.mark.parametrize(
    ("stack", "element_bytes"), [(("recipe=delayed",), 1), (("recipe=rowwise", "training.execution=eager"), 2)]
)
def test_what_travels_in_fp8_is_what_the_stack_keeps(small: Small, stack: tuple[str, ...], element_bytes: int) -> None:
    # Transformer Engine keeps an eight-bit copy of the input, torchao the input as it is.
    float8 = (f"training.float8.{stack[0]}", *stack[1:])
    program = lower(small("dense", *float8, "training.swap.operators={down: 1.0}"))
    assert moved(program, "copy_out") == [2048 * 4096 * element_bytes] * LAYERS


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_results_are_bf16_in_fp8_as_well(small: Small, kind: str) -> None:
    plain, kept = (
        lower(small(kind, FULL, "training.float8.recipe=delayed", *more))
        for more in ((), ("training.swap.operators={attention: 1.0}",))
    )
    assert ran(kept, "attention", "recompute") == 0
    assert moved(kept, "copy_out") == [HIDDEN + 2048 * 8 * 4] * LAYERS
    assert peaks(plain).keys() | {"ddr"} == peaks(kept).keys()


@pytest.mark.parametrize("where", ["operators", "on_card"])
def test_an_operator_whose_result_is_kept_does_not_run_again(small: Small, where: str) -> None:
    plain, kept = (lower(small("dense", FULL, *more)) for more in ((), (f"training.swap.{where}={{attention: 1.0}}",)))
    assert ran(plain, "attention", "recompute") == LAYERS
    assert ran(kept, "attention", "recompute") == 0
    assert ran(kept, "attention", "forward") == ran(kept, "attention", "backward") == LAYERS
    # The output, and one fp32 number a token and head.
    statistics = 2048 * 8 * 4
    assert moved(kept, "copy_out") == ([HIDDEN + statistics] * LAYERS if where == "operators" else [])
    assert kept_forward(kept) - kept_forward(plain) == (HIDDEN + statistics) * LAYERS
    peaks(kept)


def test_the_exchange_does_not_run_again_where_what_it_leads_to_is_there(small: Small) -> None:
    lora = "training.lora={rank: 8, targets: [attention]}"
    split = "parallel={dp_shard: 16, ep: 16}"
    kept = lower(small("mixture", FULL, lora, split, "training.swap.on_card={experts_fc1: 1.0}"))
    plain = lower(small("mixture", FULL, lora, split))
    assert ran(plain, "dispatch", "recompute") == LAYERS
    assert ran(kept, "dispatch", "recompute") == ran(kept, "permute", "recompute") == 0
    assert ran(kept, "dispatch", "forward") == LAYERS
    peaks(kept, 16)


def test_experts_that_are_trained_still_need_their_rows(small: Small) -> None:
    split = "parallel={dp_shard: 16, ep: 16}"
    first = lower(small("mixture", FULL, split, "training.swap.on_card={experts_fc1: 1.0}"))
    both = lower(small("mixture", FULL, split, "training.swap.on_card={experts_fc1: 1.0, sort_by_expert: 1.0}"))
    assert ran(first, "dispatch", "recompute") == LAYERS
    assert ran(both, "dispatch", "recompute") == 0
    peaks(both, 16)


def test_stages_may_keep_different_shares_of_their_own_layers(small: Small) -> None:
    stages = ("parallel={dp_shard: 8, pp: 2}", "training.global_batch_sequences=16")
    each = "training.swap=[{on_card: {attention: 1.0}}, {on_card: {attention: 0.5}}]"
    programs = TrainingStep(assemble_job(*small("dense", FULL, each, *stages))).programs(2)
    again = [
        [task.layer for task in p.tasks if task.name == "attention" and task.phase == "recompute"] for p in programs
    ]
    # Two micro-batches; of layers 2 and 3 every second keeps its result.
    assert again == [[], [2, 2]]


def test_tensors_come_back_ahead_of_their_layer(small: Small) -> None:
    def order(prefetch: int) -> list[int]:
        swap = f"training.swap={{operators: {{down: 1.0}}, prefetch: {prefetch}}}"
        tasks = lower(small("dense", swap)).tasks
        back = [task for task in tasks if task.kind == "copy_in" or task.phase == "backward"]
        return [task.layer for task in back if task.kind == "copy_in"]

    # The layer at whose backward pass each copy is sent for, -1 the loss; layer 3's tensors are still on the card.
    assert order(1) == [3, 2, 1]
    assert order(2) == [-1, 3, 2]


def test_compute_waits_for_copies_that_the_link_cannot_hide(small: Small) -> None:
    def step_ns(*overrides: str) -> int:
        return Simulation(Part(lower(small("dense", *overrides)).tasks, 1)).run()[0].step_ns

    plain, some, all_of_it = (
        step_ns(),
        step_ns("training.swap.operators={o_proj: 0.25}"),
        step_ns("training.swap.operators={gate_up: 1.0, activation: 1.0, down: 1.0, attention: 1.0}"),
    )
    assert plain <= some < 1.02 * plain
    assert all_of_it > 1.1 * plain


@pytest.mark.parametrize("kind", ["mixture", "latent", "predicting", "seeing"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_every_kind_of_layer_gives_back_what_it_takes(small: Small, kind: str, recompute: str) -> None:
    swap = "training.swap={operators: {attention: 0.5}, prefetch: 3, in_flight: 2}"
    images = ["training.images={height: 64, width: 64, per_sequence: [1]}"] if kind == "seeing" else []
    program = lower(small(kind, swap, f"training.recompute={recompute}", *images), 2)
    assert not any(abs(ledger.left_bytes).max() for ledger in account(program.tasks, (), 1).values())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.swap.prefetch=2",), "names no operators"),
        ((FULL, "training.swap.operators={o_proj: 1.0}"), "found o_proj; llama has .*attention.*layer_input"),
        (("training.swap.on_card={attention: 1.0}",), "nothing is recomputed whole"),
        (("training.recompute.keep=matmuls", "training.swap.operators={attention: 1.0}"), "recompute.keep"),
        (
            (FULL, "training.swap={operators: {attention: 0.75}, on_card: {attention: 0.5}}"),
            r"operators.attention\(0.75\) \+ on_card.attention\(0.5\) = 1.25, more than all layers; nearest: 0.25",
        ),
        (
            (FULL, "training.swap=[{on_card: {attention: 1.0}}, {}]"),
            "found a list of 2, and pp is 1; allowed: one for each stage",
        ),
        (("training.offload.activations=streamed", "training.swap.operators={attention: 1.0}"), "one or the other"),
    ],
)
def test_what_does_not_go_together_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        lower(small("dense", *overrides))

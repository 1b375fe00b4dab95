import pytest
from small_jobs import Small, lower
from test_program_training_step import adapters_gathered

from simulator.forecast.reading import read_scenario
from simulator.program.stage import StageProgram

# Kimi K3.1 by its census: routed experts, and all the rest, vision tower included.
EXPERTS = 92 * 896 * 3 * 3584 * 3072
REST = 2_780_110_363_392 - EXPERTS
# Rows that FSDP2 adds so that dim 0 divides by 128: b_proj, kv_a, the indexer's weights, 187 scoring vectors of 1 row.
PADDING = 7168 * (69 * 32 + 24 * 64 + 24 * 96 + 187 * 127)


def resident(program: StageProgram) -> dict[str, float]:
    """Bytes of weights and their states by kind."""
    held: dict[str, float] = {}
    for item in (*program.resident, *program.born):
        if item.kind != "workspace":
            held[item.kind] = held.get(item.kind, 0.0) + float(item.bytes)
    return held


def test_a_card_of_the_main_job_keeps_43_gb_of_frozen_weights(main_job: StageProgram) -> None:
    held = resident(main_job)
    assert pytest.approx(42.54e9, rel=1e-4) == 2 * EXPERTS / 128
    frozen, adapters = 2 * (EXPERTS + REST + PADDING) / 128, adapters_gathered() / 128
    assert frozen == pytest.approx(43.44e9, rel=1e-4)
    # Adapters have fp32 masters and two moments; gradients live only within a step.
    assert held == {"parameters": frozen + 4 * adapters, "optimizer": 8 * adapters}


def test_full_fine_tuning_would_need_347_gb_a_card() -> None:
    program = lower(read_scenario("kimi-k3-full-finetune-128xh200"))
    shard = (EXPERTS + REST + PADDING) / 128
    assert resident(program) == {"parameters": 4 * shard, "optimizer": 8 * shard}
    # With 4 bytes of gradient 16 a parameter; padding is 27 MB of it.
    assert pytest.approx(347.5e9, rel=1e-3) == 16 * (EXPERTS + REST) / 128
    assert pytest.approx(26.7e6, rel=1e-3) == 16 * PADDING / 128


@pytest.mark.parametrize(
    ("overrides", "bytes_each"),
    [
        ((), {"parameters": 4, "optimizer": 8}),
        (("training.optimizer.state_dtype=bf16",), {"parameters": 4, "optimizer": 4}),
        (("training.optimizer.master_weights=false",), {"parameters": 2, "optimizer": 8}),
        (("training.optimizer.name=sgd",), {"parameters": 4}),
    ],
)
def test_bytes_of_state_by_optimizer(small: Small, overrides: tuple[str, ...], bytes_each: dict[str, int]) -> None:
    shard = (4 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024) + 2 * 2048 * 1024 + 1024) / 16
    assert resident(lower(small("dense", *overrides))) == {kind: size * shard for kind, size in bytes_each.items()}


def test_experts_are_a_group_of_their_own_beside_the_rest_of_their_layer(small: Small) -> None:
    layout = lower(small("mixture", "parallel.ep=4")).layout
    assert [unit.name for unit in layout.layers] == ["layer 0", "layer 1", "layer 2", "layer 3"]
    dense, experts = layout.layers[0].groups
    assert (dense.axis, dense.ranks, experts.axis, experts.ranks) == ("dp_shard", 16, "efsdp", 4)
    assert experts.elements == 16 // 4 * 3 * 1024 * 512
    # Attention with a norm on each head's q and k, the router and two norms.
    assert dense.elements == 4 * 1024 * 1024 + 2 * 128 + 16 * 1024 + 2 * 1024

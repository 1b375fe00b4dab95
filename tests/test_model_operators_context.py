"""What context-parallel ranks compute, keep and send when they exchange heads or pass keys and values around."""

import pytest
from model_operators import model, named, one, saved_bytes

from simulator.model.architecture import (
    Architecture,
    BlockSparseAttention,
    DenseFeedForward,
    GatedDeltaNet,
    GroupedAttention,
    Indexer,
    KimiDeltaAttention,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
)
from simulator.model.context import context_problems
from simulator.model.operator import Collective, Context, Operator, Workload, keep_once
from simulator.model.operators.layers import component_operators, layer_operators

L, D, CP = 8192, 4096, 4
N = L // CP
GROUPED = GroupedAttention(32, 8, 128)
LATENT = LatentAttention(32, 1536, 512, 128, 64, 128)
QUERY, KEYS, OUTPUT = 2 * N * 32 * 128, 2 * N * 8 * 128, 2 * N * 32 * 128
"""Bytes of one rank's queries, of its keys or values, and of its attention output."""
MIXERS = [
    GROUPED,
    LATENT,
    GatedDeltaNet(16, 32, 128, 128, 4),
    Mamba2(64, 64, 8, 128, 4),
    KimiDeltaAttention(32, 128, 4),
]


def split(context: Context, mixer: Mixer = GROUPED, tp: int = 1) -> tuple[Operator, ...]:
    return keep_once(component_operators(mixer, D, Workload((L,), tp=tp, cp=CP, context=context)))


def whole(mixer: Mixer = GROUPED) -> tuple[Operator, ...]:
    return component_operators(mixer, D, Workload((L,)))


def core_flops(operators: tuple[Operator, ...]) -> list[float]:
    kinds = ("attention", "kda", "scan", "conv")
    forward = [k.flops for op in operators for k in op.forward if k.kind in kinds]
    backward = [k.flops for op in operators for k in op.backward if k.kind in kinds]
    return [sum(forward), sum(backward)]


def problems(mixer: Mixer, context: Context, tp: int = 1, cp: int = CP) -> list[str]:
    architecture = Architecture("test", D, 1024, (Layer(0, mixer, DenseFeedForward(1024)),))
    return context_problems(architecture, context, tp, cp)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.kind)
@pytest.mark.parametrize("context", ["all_to_all", "ring"])
def test_all_ranks_together_compute_what_one_would(mixer: Mixer, context: Context) -> None:
    own, everything = core_flops(split(context, mixer)), core_flops(whole(mixer))
    assert [CP * flops for flops in own] == pytest.approx(everything, rel=1e-9)


def test_queries_keys_and_values_are_exchanged_one_by_one_and_the_output_comes_back() -> None:
    there, back = named(split("all_to_all"), "cp_exchange")
    sizes = [QUERY, KEYS, KEYS]
    assert there.forward_collectives == tuple(Collective("all_to_all", "cp", size) for size in sizes)
    assert back.forward_collectives == (Collective("all_to_all", "cp", OUTPUT),)
    assert (there.backward_collectives, back.backward_collectives) == (
        there.forward_collectives,
        back.forward_collectives,
    )


def test_every_exchanged_tensor_is_copied_before_and_behind() -> None:
    copies = named(split("all_to_all"), "cp_pack", "cp_unpack")
    assert all(operator.forward == operator.backward for operator in copies)
    moved = [[(kernel.kind, kernel.bytes) for kernel in operator.forward] for operator in copies]
    there, back = [2 * QUERY, 2 * KEYS, 2 * KEYS], [2 * OUTPUT]
    assert moved == [
        [("transpose", size) for size in there],
        [("gather", size) for size in there],
        [("gather", size) for size in back],
        [("transpose", size) for size in back],
    ]


def test_the_core_sees_a_share_of_the_heads_and_the_whole_sequence() -> None:
    (kernel,) = one(split("all_to_all"), "attention").forward
    assert kernel.shape == (32 // CP, 128, L)
    assert one(split("all_to_all", tp=2), "attention").forward[0].shape == (32 // 2 // CP, 128, L)


def test_the_output_is_kept_before_and_behind_its_exchange() -> None:
    kept = {tensor.name: tensor.bytes for operator in split("all_to_all") for tensor in operator.saved}
    assert kept["attention_output"] == kept["exchanged_output"] == OUTPUT
    assert saved_bytes(split("all_to_all")) == saved_bytes(split("all_gather")) + OUTPUT


def test_linear_attention_exchanges_heads_in_place_of_its_state() -> None:
    delta, handed = split("all_to_all", MIXERS[2]), split("ring", MIXERS[2])
    there, back = named(delta, "cp_exchange")
    # q and k of 16 heads, v and z of 32, beta and alpha: one tensor.
    assert [c.bytes for c in there.forward_collectives] == [2 * N * (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32)]
    assert [c.bytes for c in back.forward_collectives] == [2 * N * 32 * 128]
    assert "cp_state" not in {operator.name for operator in delta}
    operations = [c.operation for operator in handed for c in operator.forward_collectives]
    assert operations == ["send", "relay"]


def test_a_ring_attends_to_its_own_keys_and_then_to_half_of_everyone_elses() -> None:
    ring = one(split("ring"), "ring_attention")
    kernels = [kernel for kernel in ring.forward if kernel.kind == "attention"]
    pairs = [kernel.flops / (2 * 32 * (128 + 128)) for kernel in kernels]
    assert pairs == [N * (N + 1) / 2] + [N * N / 2] * (CP - 1)
    assert {kernel.shape for kernel in kernels} == {(32, 128, N)}


def test_keys_and_values_hop_beside_every_step_but_the_last() -> None:
    ring = one(split("ring"), "ring_attention")
    assert ring.forward_beside == (Collective("send", "cp", 2 * KEYS),) * (CP - 1)
    # Backward: keys and values, then with their gradients, then the gradients alone on their way home.
    assert [hop.bytes for hop in ring.backward_beside] == [2 * KEYS, 4 * KEYS, 4 * KEYS, 2 * KEYS]
    assert [kernel.kind for kernel in ring.backward[:CP]] == ["attention"] * CP


def test_partial_outputs_and_received_keys_stay_until_the_ring_is_closed() -> None:
    ring, statistics = one(split("ring"), "ring_attention"), 4 * N * 32
    assert ring.workspace_bytes == (CP - 1) * 2 * KEYS + CP * (OUTPUT + statistics)
    assert saved_bytes(split("ring")) == saved_bytes(split("all_gather"))
    corrections = [kernel.bytes for kernel in ring.forward[CP:]]
    assert sum(corrections) == 4 * KEYS + (2 + 9) * statistics + (2 + 9) * OUTPUT + (2 + 6) * statistics


def test_a_model_of_one_context_rank_is_the_same_by_every_way() -> None:
    llama = model("llama-3.1-8b")
    ways: tuple[Context, ...] = ("all_gather", "all_to_all", "ring")
    assert len({layer_operators(llama, llama.layers[0], Workload((L,), context=way)) for way in ways}) == 1


def test_heads_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    assert problems(GROUPED, "all_to_all", tp=2, cp=4) == []
    assert problems(GROUPED, "all_to_all", tp=2, cp=8) == [
        "all_to_all shares out heads, but cp(8) does not divide the key-value heads of grouped attention that a rank "
        "of tp(2) holds: 4 / 8 = 0.50; the nearest degrees that do are 4"
    ]
    assert problems(GROUPED, "ring", tp=2, cp=8) == []
    assert len(problems(GROUPED, "all_to_all", cp=3)) == 2


def test_ways_that_are_not_known_of_a_mixer_are_refused() -> None:
    windowed, sparse = (
        GroupedAttention(32, 8, 128, window=1024),
        LatentAttention(32, 1536, 512, 128, 64, 128, indexer=Indexer(4, 64, 512)),
    )
    assert problems(windowed, "all_to_all") == []
    assert problems(windowed, "ring") == [
        "ring is not known of this model's grouped attention; allowed: all_gather, all_to_all"
    ]
    for mixer in (sparse, BlockSparseAttention(GROUPED, 64, 16, 4, 64)):
        assert problems(mixer, "all_gather") == []
        assert len(problems(mixer, "all_to_all")) == len(problems(mixer, "ring")) == 1
    assert problems(sparse, "ring", cp=1) == []

"""What one rank computes, keeps and communicates where a layer is split."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_operators import MODELS, kernels, model, named, one, saved_bytes

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    GatedDeltaNet,
    GroupedAttention,
    KimiDeltaAttention,
    LatentAttention,
    Layer,
    Mamba2,
    Mixer,
    MixtureOfExperts,
)
from simulator.model.operator import Collective, Operator, Workload
from simulator.model.operators.layers import component_operators, embedding_operators, layer_operators, loss_operators

T, D = 8192, 4096
LLAMA = model("llama-3.1-8b")
ATTENTION, FEED_FORWARD = GroupedAttention(32, 8, 128), DenseFeedForward(14_336)


def one_layer(mixer: Mixer, feed_forward: FeedForward, hidden: int) -> Architecture:
    return Architecture("test", hidden, 1024, (Layer(0, mixer, feed_forward),))


def layer(workload: Workload, architecture: Architecture = LLAMA) -> tuple[Operator, ...]:
    return layer_operators(architecture, architecture.layers[0], workload)


def flops(operators: tuple[Operator, ...]) -> float:
    return sum(kernel.flops for operator in operators for kernel in kernels(operator) if kernel.shape)


def forward(operators: tuple[Operator, ...]) -> list[Collective]:
    return [collective for operator in operators for collective in operator.forward_collectives]


def backward(operators: tuple[Operator, ...]) -> list[Collective]:
    return [collective for operator in operators for collective in operator.backward_collectives]


@pytest.mark.parametrize("execution", ["eager", "compiled", "fused"])
@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize(
    "mixer", [ATTENTION, GatedDeltaNet(16, 32, 128, 128, 4), Mamba2(64, 64, 8, 128, 4)], ids=lambda m: m.kind
)
def test_flops_of_all_ranks_are_those_of_one(mixer: Mixer, tp: int, execution: str) -> None:
    architecture = one_layer(mixer, FEED_FORWARD, D)
    whole = flops(layer(Workload((T,), execution), architecture))  # type: ignore[arg-type]
    assert tp * flops(layer(Workload((T,), execution, tp=tp), architecture)) == whole  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_activations_of_a_gpt_layer_are_those_of_the_published_formula(tp: int) -> None:
    """Korthikanti et al. (2022), table 2: sbh 34 / t with sequence parallelism and a recomputed core, sbh (10 + 24 / t)
    without. We have no dropout (2 of the 34, in the 10) and keep the statistics of flash attention and of two norms.
    """
    heads, hidden, tokens = 32, 4096, 2048
    attention = GroupedAttention(heads, heads, hidden // heads, rotary_dim=0)
    gpt = one_layer(attention, DenseFeedForward(4 * hidden, "gelu", gated=False), hidden)
    sbh, log_sums, norms = tokens * hidden, 4 * tokens * heads / tp, 2 * 4 * tokens
    with_sequence = saved_bytes(layer(Workload((tokens,), tp=tp), gpt))
    assert with_sequence == sbh * 32 / tp + log_sums + norms / tp
    without = saved_bytes(layer(Workload((tokens,), tp=tp, sequence_parallel=False), gpt))
    assert without == sbh * (8 + 24 / tp) + log_sums + norms


def test_a_layer_gathers_and_scatters_twice_each_way() -> None:
    operators = layer(Workload((T,), tp=4))
    whole = 2 * T * D
    found = forward(operators)
    assert [c.operation for c in found] == ["all_gather", "reduce_scatter", "all_gather", "reduce_scatter"]
    assert [(c.axis, c.bytes, c.weights) for c in found] == [("tp", whole, ())] * 4
    names = [operator.name for operator in operators if operator.forward_collectives]
    assert names == ["tp_gather", "tp_scatter"] * 2


def test_the_input_is_gathered_again_for_the_gradients_of_weights_only() -> None:
    gather = named(layer(Workload((T,), tp=4)), "tp_gather")[0]
    again, summed = gather.backward_collectives
    assert again == Collective(
        "all_gather", "tp", 2 * T * D, tuple(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v"))
    )
    assert summed == Collective("reduce_scatter", "tp", 2 * T * D)
    # each rank keeps its own tokens of the input
    assert {s.name: s.bytes for s in one(layer(Workload((T,), tp=4)), "qkv_proj").saved} == {
        "mixer_input": 2 * T * D / 4
    }


def test_pytorch_keeps_what_it_gathered_and_copies_around_each_transfer() -> None:
    operators, whole = layer(Workload((T,), "compiled", tp=4)), 2 * T * D
    gather, scatter = named(operators, "tp_gather", "tp_scatter")[:2]
    assert gather.backward_collectives == (Collective("reduce_scatter", "tp", whole),)
    # every element is looked for in four parts; backward, gradients of q, k and v are summed on the way
    one_read = ("part_copy", 4 * T * D, 2 * whole)
    for copied in (gather.forward, scatter.forward, scatter.backward):
        assert [(k.kind, k.flops, k.bytes) for k in copied] == [one_read]
    assert [(k.kind, k.flops, k.bytes) for k in gather.backward] == [("part_copy", 3 * 4 * T * D, 4 * whole)]
    for transfer in (gather, scatter):
        # the tensor as the library has it, beside the copy
        assert (transfer.workspace_bytes, transfer.backward_workspace_bytes) == (whole, whole)
    assert {s.name: s.bytes for s in one(operators, "q_proj").saved} == {"mixer_input": whole}


def test_without_sequence_parallelism_two_all_reduces_each_way() -> None:
    operators = layer(Workload((T,), tp=4, sequence_parallel=False))
    all_reduce = Collective("all_reduce", "tp", 2 * T * D)
    assert [operator.name for operator in operators if not operator.forward] == ["tp_copy", "tp_reduce"] * 2
    assert forward(operators) == backward(operators) == [all_reduce] * 2
    assert one(operators, "input_layernorm").output_bytes == 2 * T * D


def test_norms_and_residuals_run_on_the_ranks_own_tokens() -> None:
    split, whole = layer(Workload((T,), "eager", tp=4)), layer(Workload((T,), "eager"))
    for name in ("input_layernorm", "post_attention_layernorm", "mixer_add", "feed_forward_add"):
        assert sum(k.bytes for k in one(split, name).forward) == sum(k.bytes for k in one(whole, name).forward) / 4
        assert one(split, name).output_bytes == 2 * T * D / 4


def test_key_value_heads_are_copied_where_there_are_fewer_than_ranks() -> None:
    split = component_operators(ATTENTION, D, Workload((T,), "eager", tp=16))
    assert one(split, "q_proj").forward[0].shape == (T, 256, D)
    assert one(split, "k_proj").forward[0].shape == (T, 128, D)
    assert one(split, "attention").forward[0].shape == (2, 128, T)


@pytest.mark.parametrize(("tp", "etp"), [(8, 1), (1, 4), (8, 4)])
def test_routed_experts_are_split_by_etp_and_not_by_tp(tp: int, etp: int) -> None:
    part = MixtureOfExperts(64, 8, 2048, shared_experts=1, shared_intermediate=2048)
    split, whole = (component_operators(part, D, w) for w in (Workload((T,), tp=tp, etp=etp), Workload((T,))))
    for name in ("experts_fc1", "experts_fc2"):
        ours, theirs = one(split, name).forward[0], one(whole, name).forward[0]
        assert (ours.flops, ours.fixed_bytes) == (theirs.flops / etp, theirs.fixed_bytes / etp)
    for name in ("shared_experts_gate_up", "shared_experts_down"):
        assert one(split, name).forward[0].flops == one(whole, name).forward[0].flops / tp
    # router and rows are of the rank's own tokens; a row on the wire is as wide as ever
    assert one(split, "router").forward[0].flops == one(whole, "router").forward[0].flops / tp
    assert one(split, "permute").output_bytes == one(whole, "permute").output_bytes / tp
    assert one(split, "dispatch").payload_bytes == 2 * D


def test_etp_ranks_gather_the_rows_that_each_was_sent() -> None:
    operators = component_operators(MixtureOfExperts(64, 8, 2048), D, Workload((T,), etp=4))
    names = [operator.name for operator in operators]
    before, behind = (operators[names.index(name)] for name in ("tp_gather", "tp_scatter"))
    assert names.index("dispatch") + 1 == names.index("tp_gather")
    assert names.index("tp_scatter") + 1 == names.index("combine")
    assert before.rows == behind.rows == "routed"
    assert before.forward_collectives == behind.backward_collectives == (Collective("all_gather", "etp", 2 * D),)
    assert behind.forward_collectives == before.backward_collectives == (Collective("reduce_scatter", "etp", 2 * D),)


def test_ranks_with_all_tokens_send_a_share_of_them_to_experts() -> None:
    workload = Workload((T,), tp=4, sequence_parallel=False)
    operators = component_operators(MixtureOfExperts(64, 8, 2048), D, workload)
    assert one(operators, "router").forward[0].shape == (T, 64, D)
    assert one(operators, "permute").output_bytes == 2 * T * 8 * D / 4
    gather = Collective("all_gather", "tp", 2 * T * D)
    assert (forward(operators), backward(operators)) == ([gather], [gather])


def test_latent_attention_makes_latents_of_own_tokens_and_gathers_those() -> None:
    mixer = LatentAttention(128, 1536, 512, 128, 64, 128)
    operators = component_operators(mixer, 7168, Workload((T,), tp=8))
    assert one(operators, "q_a_proj").forward[0].shape == (T // 8, 1536, 7168)
    assert one(operators, "kv_a_proj").forward[0].shape == (T // 8, 576, 7168)
    assert one(operators, "q_b_proj").forward[0].shape == (T, 16 * 192, 1536)
    assert one(operators, "kv_b_proj").forward[0].shape == (T, 16 * 256, 512)
    gathered = [c.bytes for c in forward(operators) if c.operation == "all_gather"]
    assert gathered == [2 * T * width for width in (1536, 512, 64)]
    assert forward(operators)[-1] == Collective("reduce_scatter", "tp", 2 * T * 7168)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 12))
def test_pairs_of_all_context_ranks_are_all_pairs(cp: int, piece: int) -> None:
    length = 2 * cp * piece
    workload = Workload((length,), cp=cp)
    for rank in range(cp):
        front, back = range(rank * piece, (rank + 1) * piece), range(length - (rank + 1) * piece, length - rank * piece)
        assert workload.causal_pairs == sum(position + 1 for position in (*front, *back))
    assert cp * workload.causal_pairs == length * (length + 1) // 2
    assert workload.tokens == 2 * piece


def test_context_ranks_exchange_grouped_keys_and_values() -> None:
    operators = component_operators(ATTENTION, D, Workload((T, T), tp=2, cp=4))
    (gather,) = named(operators, "cp_gather")
    # four of eight key-value heads on this tp rank, keys and values, of both whole sequences
    whole = 2 * T * 2 * (4 * 128) * 2
    assert gather.output_bytes == whole
    assert gather.forward_collectives == (Collective("all_gather", "cp", whole),)
    assert [c.operation for c in gather.backward_collectives] == ["all_gather", "reduce_scatter"]
    core = one(operators, "attention")
    assert core.forward[0].flops == 512 * 16 * 2 * (T * (T + 1) // 2) / 4
    # kept: the rank's own tokens
    assert {s.name: s.bytes for s in core.saved}["key"] == 2 * (2 * T // 4) * 4 * 128


def test_context_ranks_exchange_latents() -> None:
    operators = component_operators(LatentAttention(128, 1536, 512, 128, 64, 128), 7168, Workload((T,), cp=4))
    assert one(operators, "cp_gather").output_bytes == 2 * T * 576
    expand = one(operators, "kv_b_proj")
    assert expand.forward[0].shape == (T, 128 * 256, 512)
    # expanded again, then the two gradients
    assert sum(k.flops for k in (*expand.backward, *expand.backward_weight)) == 3 * expand.forward[0].flops
    assert {s.name: s.bytes for s in one(operators, "attention").saved if s.name in {"key", "value"}} == {
        "key": 0,
        "value": 0,
    }


@pytest.mark.parametrize(
    ("mixer", "state", "edge"),
    [
        # a state of d x d and a transition of d x d for each of the 48 heads; three tokens of q, k and v
        (KimiDeltaAttention(96, 128, 4), 4 * 48 * 2 * 128 * 128, 2 * 3 * 3 * 48 * 128),
        (GatedDeltaNet(16, 32, 128, 256, 4), 4 * 16 * 128 * (256 + 128), 2 * 3 * (2 * 8 * 128 + 16 * 256)),
        # a state of 64 x 128 and one decay a head; x, and B and C of four groups
        (Mamba2(64, 64, 8, 128, 4), 4 * 32 * (64 * 128 + 1), 2 * 3 * (32 * 64 + 2 * 4 * 128)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_linear_attention_hands_over_its_state(mixer: Mixer, state: int, edge: int) -> None:
    operators = component_operators(mixer, D, Workload((T, T), tp=2, cp=4))
    halo, relay = (operator.forward_collectives for operator in named(operators, "cp_state"))
    assert halo == (Collective("send", "cp", 2 * edge),)
    assert relay == (Collective("relay", "cp", 2 * state),)
    assert not any(operator.name == "cp_gather" for operator in operators)


@pytest.mark.parametrize("variant", ["plain", "chunked", "cut"])
def test_vocabulary_is_split_and_each_token_reduced_thrice(variant: str) -> None:
    split = loss_operators(LLAMA, Workload((T,), tp=8), variant)  # type: ignore[arg-type]
    whole = loss_operators(LLAMA, Workload((T,)), variant)  # type: ignore[arg-type]
    assert 8 * flops(split) == flops(whole)
    gather, *reductions = forward(split)
    assert gather == Collective("all_gather", "tp", 2 * T * D)
    assert reductions == [Collective("all_reduce", "tp", 4 * T)] * 3
    again = [c.weights for c in backward(split) if c.operation == "all_gather"]
    assert again == ([("lm_head.weight",)] if variant == "plain" else [])


def test_embedding_holds_a_share_of_the_rows_and_scatters_their_sum() -> None:
    rows, scatter = embedding_operators(LLAMA, Workload((T,), tp=8))
    assert rows.backward_weight[0].bytes == 2 * 128_256 * D / 8
    assert scatter.forward_collectives == (Collective("reduce_scatter", "tp", 2 * T * D),)
    assert scatter.backward_collectives == (Collective("all_gather", "tp", 2 * T * D),)
    assert scatter.output_bytes == 2 * T * D / 8


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_every_model_splits_and_an_axis_of_one_rank_communicates_nothing(path) -> None:  # type: ignore[no-untyped-def]
    architecture = model(path.stem)
    makes = {(item.mixer, item.feed_forward): item for item in architecture.layers}.values()
    for item in makes:
        alone = layer_operators(architecture, item, Workload((T,)))
        assert forward(alone) == backward(alone) == []
        split = layer_operators(architecture, item, Workload((T,), tp=2, cp=2, etp=2))
        assert {c.axis for c in forward(split)} >= {"tp"}
        assert saved_bytes(split) < saved_bytes(alone)
        assert {w for o in split for w in o.weights} == {w for o in alone for w in o.weights}
        known = {w for o in alone for w in o.weights}
        assert {w for c in backward(split) for w in c.weights} <= known


@pytest.mark.parametrize(
    ("elements", "parts_read", "element_bytes", "measured_ms"),
    [  # profiled on an H200 at tp 8: to and from parts, sums of two and of three; an fp8 gather
        (98_304 * 4096, 8, 4, 0.561), (98_304 * 4096, 8, 4, 0.474), (98_304 * 4096, 16, 6, 0.904),
        (98_304 * 4096, 24, 8, 1.400), (65_536 * 8192, 8, 4, 0.761), (65_536 * 8192, 24, 8, 1.883),
        (65_536 * 8192, 8, 2, 0.511),
    ],
)  # fmt: skip
def test_copies_between_parts_as_they_were_measured(
    elements: int, parts_read: int, element_bytes: int, measured_ms: float
) -> None:
    h200 = load_accelerator("h200-sxm", Path())
    work = float(elements * parts_read), float(elements * element_bytes)
    priced_s = float(kernel_time(h200, "part_copy", *work, dtype="fp32").seconds)
    assert priced_s * 1e3 == pytest.approx(measured_ms, rel=0.28)

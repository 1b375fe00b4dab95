from dataclasses import replace

import pytest
from model_operators import PRODUCTS, forward_flops, model, named, one, saved_bytes, top_k

from simulator.model.architecture import DenseFeedForward, KimiDeltaAttention, LatentAttention
from simulator.model.operator import Execution, Operator, Workload
from simulator.model.operators import delta_rule
from simulator.model.operators.layers import component_operators, layer_operators, loss_operators

TOKENS = 8192
K3 = model("kimi-k3")
K31 = model("kimi-k3.1")
WORKLOAD = Workload((TOKENS,))
DELTA = next(layer.mixer for layer in K3.layers if isinstance(layer.mixer, KimiDeltaAttention))
LATENT = next(layer.mixer for layer in K3.layers if isinstance(layer.mixer, LatentAttention))
SPARSE = next(layer.mixer for layer in K31.layers if isinstance(layer.mixer, LatentAttention))
EXPERTS = next(K3.moe_layers()).feed_forward


def per_token_mflop(operators: tuple[Operator, ...] | list[Operator], kinds: tuple[str, ...] = PRODUCTS) -> float:
    return forward_flops(operators, kinds=kinds) / TOKENS / 1e6


def test_projections_of_gated_latent_attention_cost_464_mflop_a_token() -> None:
    # 2 (7168 x 1536 + 1536 x 96 x 192 + 7168 x 576 + 512 x 96 x 256 + 2 x 7168 x 96 x 128)
    operators = component_operators(LATENT, 7168, WORKLOAD)
    assert per_token_mflop(operators) == 464.388096


def test_dense_latent_attention_costs_61440_flops_a_pair() -> None:
    core = one(component_operators(LATENT, 7168, WORKLOAD), "attention")
    pairs = TOKENS * (TOKENS + 1) // 2
    assert core.forward[0].flops == 61_440 * pairs
    assert max(kernel.flops for kernel in core.backward) == 2 * 96 * (3 * 192 + 2 * 128) * pairs
    assert core.forward[0].shape == (96, 192, TOKENS)


def test_latent_attention_without_rotation_has_no_rotary_operator() -> None:
    assert "rotary" not in {o.name for o in component_operators(LATENT, 7168, WORKLOAD)}
    turned = component_operators(replace(LATENT, rope=True), 7168, WORKLOAD)
    # 96 heads x 64 dims, read and written in bf16; the shared part is rotated where it joins the keys.
    assert one(turned, "rotary").forward[0].bytes == TOKENS * 96 * 64 * 2 * 2
    # Read: 96 x (128 + 128) out of kv_b and 64 shared; written: keys of 96 x 192 and values of 96 x 128.
    assert one(turned, "join_keys").forward[0].bytes == TOKENS * (96 * 256 + 64 + 96 * 192 + 96 * 128) * 2


def test_what_dense_latent_attention_keeps_of_one_token() -> None:
    kept = {s.name: s.bytes / TOKENS for o in component_operators(LATENT, 7168, WORKLOAD) for s in o.saved}
    assert kept["query_latent"] == 1536 * 2
    assert kept["key_latent"] == 512 * 2
    assert kept["query"] == kept["key"] == 96 * 192 * 2
    # without rotation the values stay a view of kv_b's whole output
    assert kept["value"] == 96 * 256 * 2
    assert kept["attention_output"] == kept["gate_projection"] == 96 * 128 * 2
    assert kept["attention_statistics"] == 96 * 4


@pytest.mark.parametrize(("execution", "sums"), [("eager", 5), ("compiled", 0), ("fused", 5)])
def test_gradients_of_an_input_with_six_readers_are_added_but_where_a_compiler_joins_kernels(
    execution: Execution, sums: int
) -> None:
    # q, k, v, decay, beta and gate read the mixer's input; a sum reads two gradients of 8,192 x 7,168 and writes one.
    operators = component_operators(DELTA, 7168, Workload((TOKENS,), execution))
    readers = [o for o in operators if o.reads == "mixer_input"]
    assert len(readers) == 6
    added = [kernel for o in readers for kernel in o.backward[1:]]
    assert [kernel.bytes for kernel in added] == [3 * TOKENS * 7168 * 2] * sums


def test_situ_is_bound_by_its_special_functions_and_swiglu_by_memory() -> None:
    part = DenseFeedForward(33_792, "situ", gated=True)
    for function, kind in (("situ", "situ"), ("silu", "elementwise")):
        unit = one(component_operators(replace(part, activation=function), 7168, WORKLOAD), "activation")
        assert [(k.kind, k.bytes) for k in unit.forward] == [(kind, TOKENS * 3 * 33_792 * 2)]
        assert [(k.kind, k.bytes) for k in unit.backward] == [(kind, TOKENS * 5 * 33_792 * 2)]


def test_projections_of_kimi_delta_attention_cost_887_mflop_a_token() -> None:
    # 2 (5 x 7168 x 12288 + 7168 x 128 + 128 x 12288 + 7168 x 96)
    assert per_token_mflop(component_operators(DELTA, 7168, WORKLOAD)) == 887.160832


def test_delta_rule_costs_16_mflop_a_token_forward_and_43_backward_however_it_is_run() -> None:
    assert delta_rule.forward_flops(128) == 169_984
    for execution in ("eager", "compiled", "fused"):
        core = one(component_operators(DELTA, 7168, replace(WORKLOAD, execution=execution)), "delta_rule")
        assert sum(k.flops for k in core.forward) == 169_984 * 96 * TOKENS
        assert sum(k.flops for k in core.backward) == 450_560 * 96 * TOKENS


def test_bytes_and_launches_of_the_delta_rule_by_way() -> None:
    rows = 96 * TOKENS
    fused = one(component_operators(DELTA, 7168, WORKLOAD), "delta_rule")
    chain = one(component_operators(DELTA, 7168, replace(WORKLOAD, execution="compiled")), "delta_rule")
    # q, k, v, gate, beta in; w, u, gated q and k, scores of 16 tokens, decays out; all of those in, the output out
    prepared = 4 * 256 + 2 * 16 + 4 * 128 / 16
    assert sum(k.bytes for k in fused.forward) == (4 * 256 + 2 + 2 * prepared + 256) * rows
    # the walks write a state of 128 x 128 for every 16 tokens and the last kernel reads both
    assert [k.bytes / rows for k in fused.backward] == [2_210, 3_104, 3_392, 7_076]
    assert sum(k.bytes for k in chain.forward) == 10_032 * rows
    assert sum(k.bytes for k in chain.backward) == 26_524 * rows
    assert [sum(k.launches for k in side) for side in (fused.forward, fused.backward)] == [2, 4]
    assert [sum(k.launches for k in side) for side in (chain.forward, chain.backward)] == [9, 14]


def test_the_chain_of_the_delta_rule_keeps_1294_bytes_a_token_and_head() -> None:
    chain = one(component_operators(DELTA, 7168, replace(WORKLOAD, execution="eager")), "delta_rule")
    assert sum(s.bytes for s in chain.saved) == 1_294 * 96 * TOKENS
    fused = one(component_operators(DELTA, 7168, WORKLOAD), "delta_rule")
    assert sum(s.bytes for s in fused.saved) == (4 * 128 * 2 + 2) * 96 * TOKENS


def test_measured_memory_of_the_chain_on_an_h200() -> None:
    # flash-linear-attention forward, H = 96, T = 32,768: 9.023 GiB beside its inputs v, decay and beta
    chain = one(component_operators(DELTA, 7168, Workload((32_768,), "eager")), "delta_rule")
    inputs = (2 * 128 * 2 + 2) * 96 * 32_768
    forward = sum(s.bytes for s in chain.saved) - inputs + chain.output_bytes + chain.workspace_bytes
    assert forward / 2**30 == pytest.approx(9.023, rel=0.02)


def test_latent_experts_cost_what_their_matrices_do() -> None:
    operators = component_operators(EXPERTS, 7168, WORKLOAD)
    assert per_token_mflop(named(operators, "router")) == 12.845056
    assert per_token_mflop(named(operators, "latent_down", "latent_up")) == 102.760448
    shared = named(operators, "shared_experts_gate_up", "shared_experts_down")
    assert per_token_mflop(shared) == 264.241152
    routed = named(operators, "experts_fc1", "experts_fc2")
    assert {operator.rows for operator in routed} == {"routed"}
    # 6 x 3584 x 3072 for one row, 16 rows a token
    assert forward_flops(routed, routed_rows=1) == 66_060_288
    assert forward_flops(routed, routed_rows=16) / 1e6 == 1_056.964608


def test_one_row_puts_the_latent_width_on_the_wire() -> None:
    operators = component_operators(EXPERTS, 7168, WORKLOAD)
    for operator in named(operators, "dispatch", "combine"):
        assert (operator.payload_bytes, operator.rows, operator.forward) == (7_168, "routed", ())
    assert sum(operator.payload_bytes > 0 for operator in operators) == 2


def test_the_whole_model_forward_costs_209_gflop_a_token_without_its_attention_cores() -> None:
    operators = [o for layer in K3.layers for o in layer_operators(K3, layer, WORKLOAD)]
    operators += loss_operators(K3, WORKLOAD, "plain")
    kinds = (*PRODUCTS, "kda_prepare", "kda_scan")
    flops = forward_flops(operators, routed_rows=TOKENS * top_k(K3), kinds=kinds)
    # 2 x (104.19 G active - norms and other small tensors) + 69 x 16.3 M of delta rule
    assert flops / TOKENS / 1e9 == pytest.approx(209.5, abs=0.05)


def test_sparse_core_costs_428_mflop_a_token_at_every_length() -> None:
    for length in (4096, 131_072):
        core = one(component_operators(SPARSE, 7168, Workload((length,))), "sparse_attention")
        assert core.forward[0].flops / length == 2 * 2048 * 96 * 1088 == 427_819_008
        assert max(k.flops for k in core.backward) / length == 2 * 2048 * 96 * 2752


def test_indexer_costs_8192_flops_a_pair_and_goes_unlearnt() -> None:
    operators = component_operators(SPARSE, 7168, replace(WORKLOAD, core_kernels="partly_fused"))
    scores = one(operators, "index_scores").forward[0]
    pairs = TOKENS * (TOKENS + 1) // 2
    assert (scores.kind, scores.dtype) == ("indexer", "fp8")
    # and 2 x 32 for the weighted sum over heads
    assert scores.flops == (8_192 + 64) * pairs
    projections = named(operators, "index_wq_b", "index_wk", "index_weights")
    assert per_token_mflop(projections) == 14.876672
    index = [operator for operator in operators if operator.name.startswith("index_")]
    assert all(not operator.backward and not operator.backward_weight and not operator.saved for operator in index)


def test_the_fused_indexer_writes_positions_in_place_of_scores() -> None:
    fused, partly = (
        component_operators(SPARSE, 7168, replace(WORKLOAD, core_kernels=way)) for way in ("fused", "partly_fused")
    )
    pairs = TOKENS * (TOKENS + 1) // 2
    choosing, scores = one(fused, "index_topk"), one(partly, "index_scores")
    assert "index_scores" not in {operator.name for operator in fused}
    assert choosing.forward[0].flops == scores.forward[0].flops
    assert choosing.forward[0].bytes == scores.forward[0].bytes - 4 * pairs + 4 * 2048 * TOKENS
    assert (choosing.workspace_bytes, scores.workspace_bytes) == (0, 4 * 1024 * TOKENS)


def test_small_operators_gather_every_query_its_keys() -> None:
    core = one(component_operators(SPARSE, 7168, replace(WORKLOAD, core_kernels="small_operators")), "sparse_attention")
    kept = {saved.name: saved.bytes / TOKENS for saved in core.saved}
    assert kept["gathered_keys"] == 2048 * 576 * 2
    # masked scores and softmax in fp32, the softmax again in bf16
    assert kept["scores"] == 2048 * 96 * (4 + 4 + 2)
    assert [k.kind for k in core.forward][:2] == ["gather", "gemm"]


def test_absorbed_projections_replace_kv_b() -> None:
    operators = component_operators(SPARSE, 7168, WORKLOAD)
    absorbed = named(operators, "absorb_keys", "absorb_values")
    assert per_token_mflop(absorbed) == 25.165824
    assert all(operator.weights == ("self_attn.kv_b_proj.weight",) for operator in absorbed)
    assert "kv_b_proj" not in {operator.name for operator in operators}


def test_a_layer_that_shares_its_indexer_neither_scores_nor_keeps_the_choice() -> None:
    assert SPARSE.indexer is not None
    shared = component_operators(replace(SPARSE, indexer=replace(SPARSE.indexer, shared=True)), 7168, WORKLOAD)
    assert not any(operator.name.startswith("index_") for operator in shared)
    own = component_operators(SPARSE, 7168, WORKLOAD)
    # 2,048 positions of 4 bytes
    assert (saved_bytes(own) - saved_bytes(shared)) / TOKENS == 8_192


def test_residual_blocks_are_mixed_in_twice_a_layer() -> None:
    layer = K3.layers[40]
    assert layer.residual_blocks == 4
    mixes = [o for o in layer_operators(K3, layer, WORKLOAD) if o.name.endswith("residual_mix")]
    assert [sum(k.flops for k in mix.forward) / TOKENS for mix in mixes] == [4 * 5 * 7168] * 2


def test_frozen_weights_let_go_of_what_only_they_need() -> None:
    layer = K3.layers[1]
    operators = layer_operators(K3, layer, WORKLOAD)
    kept = {s.name for o in operators for s in o.saved if s.needed_for == "input_gradient"}
    assert "qkv_projection" in kept
    assert "expert_hidden" in kept
    only_trained = {s.name for o in operators for s in o.saved} - kept
    assert {"mixer_input", "mixed_normed", "feed_forward_input", "expert_input", "experts_activated"} <= only_trained
    rows = TOKENS * 16
    # a row lets go of its input and of the activated product, 2 (3584 + 3072) B
    routed = [o for o in operators if o.rows == "routed"]
    assert saved_bytes(routed, routed_rows=rows) - saved_bytes(routed, routed_rows=rows, trained=False) == (
        rows * 2 * (3584 + 3072)
    )


def test_routed_costs_do_not_depend_on_how_many_tokens_the_rank_has() -> None:
    few, many = (component_operators(EXPERTS, 7168, Workload((n,))) for n in (128, 65_536))
    assert [o for o in few if o.rows == "routed"] == [o for o in many if o.rows == "routed"]

"""Which operators run again and what is kept: figures of one layer by hand, per token, in elements of 2 bytes."""

from collections.abc import Iterable

import pytest
from model_operators import model

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import listed_operators
from simulator.model.recompute import NOTHING, WHOLE, LayerPlan, Recompute, Stack, plan_layer

TOKENS = 1024
LLAMA, DEEPSEEK, QWEN = model("llama-3.1-8b"), model("deepseek-v3"), model("qwen3-235b-a22b")
TORCH, MEGATRON = Stack(True, False, False), Stack(False, False, True)
COMPILED = Stack(True, True, False)
STATISTICS = 32 * 4 / 2
"""Llama's log-sum-exp: one fp32 number a head."""


def plan(
    architecture: Architecture, recompute: Recompute, stack: Stack = TORCH, layer: int = -1, *, execution: str = "eager"
) -> LayerPlan:
    workload = Workload((TOKENS,), execution)  # type: ignore[arg-type]
    return plan_layer([listed_operators(architecture, architecture.layers[layer], workload)], recompute, stack)


def modules(architecture: Architecture, *names: str, layer: int = -1) -> LayerPlan:
    return plan(architecture, Recompute(modules=names), MEGATRON, layer, execution="fused")  # type: ignore[arg-type]


def saved(operators: Iterable[Operator], *, restored: bool = False) -> dict[str, float]:
    """Elements a token of tensors that are saved, or restored."""
    tensors = (tensor for op in operators for tensor in (op.restored if restored else op.saved))
    return {tensor.name: tensor.bytes / TOKENS / 2 for tensor in tensors}


def again(found: LayerPlan) -> list[list[str]]:
    """Names of the operators that run again, a list for each stretch."""
    return [[found.operators[n].name for n in s.positions if n not in s.results] for s in found.stretches]


def test_nothing_recomputed_saves_everything() -> None:
    found = plan(LLAMA, NOTHING)
    assert found.stretches == ()
    assert saved(found.operators, restored=True) == {}


def test_a_whole_layer_keeps_its_input_alone() -> None:
    found, before = plan(LLAMA, WHOLE), plan(LLAMA, NOTHING)
    assert found.keeps_input
    assert saved(found.operators) == {}
    assert saved(found.operators, restored=True) == saved(before.operators)
    assert len(again(found)[0]) == len(found.operators)


def test_every_second_layer_of_a_stage() -> None:
    assert [Recompute(every=2).of_layer(n) == WHOLE for n in range(5)] == [False, True, False, True, False]
    assert [Recompute(every=1).of_layer(n) for n in range(2)] == [WHOLE, WHOLE]
    other = Recompute(keep="matmuls")
    assert other.of_layer(3) is other


def test_alternate_products_of_a_llama_layer_are_kept() -> None:
    # In order q, k, v, o, gate, up, down: the first, third, fifth and seventh. Attention is kept as well.
    found = plan(LLAMA, Recompute(keep="alternate_matmuls"))
    (stretch,) = found.stretches
    kept = {found.operators[n].name for n in stretch.results}
    assert kept == {"q_proj", "v_proj", "attention", "gate", "down"}
    assert {found.operators[n].name for n in stretch.loose} == {"q_proj", "down"}
    # v is what attention reads, gate is half of what the activation reads; q is rotated first, and nobody saves down.
    assert saved(found.operators) == {
        "value": 1024,
        "attention_output": 4096,
        "attention_statistics": STATISTICS,
        "hidden": 14336,
    }
    loose = sum(found.operators[n].output_bytes for n in stretch.loose) / TOKENS / 2
    assert loose == 4096 + 4096


def test_kept_and_restored_tensors_are_those_of_a_layer_without_recomputation() -> None:
    found, before = plan(LLAMA, Recompute(keep="alternate_matmuls")), saved(plan(LLAMA, NOTHING).operators)
    kept, back = saved(found.operators), saved(found.operators, restored=True)
    assert {name: kept.get(name, 0) + back.get(name, 0) for name in before} == before
    assert back["hidden"] == 14336


def test_all_products_kept_leave_the_parts_between_them() -> None:
    found = plan(LLAMA, Recompute(keep="matmuls"))
    assert again(found) == [
        ["input_layernorm", "rotary", "mixer_add", "post_attention_layernorm", "activation", "feed_forward_add"]
    ]
    halves = [t.bytes / TOKENS / 2 for op in found.operators for t in op.saved if t.name == "hidden"]
    assert halves == [14336, 14336]


def test_a_compiler_keeps_no_result_without_a_reader() -> None:
    found = plan(LLAMA, Recompute(keep="alternate_matmuls"), COMPILED, execution="compiled")
    assert {found.operators[n].name for n in found.stretches[0].loose} == {"q_proj"}


def test_the_router_is_no_product_to_alternate_and_exchanges_are_kept() -> None:
    spread = plan(QWEN, Recompute(keep="alternate_matmuls"), Stack(True, False, True))
    kept = {spread.operators[n].name for n in spread.stretches[0].results}
    assert kept == {"q_proj", "v_proj", "attention", "dispatch", "combine"}
    alone = plan(QWEN, Recompute(keep="alternate_matmuls"))
    assert {alone.operators[n].name for n in alone.stretches[0].results} == {"q_proj", "v_proj", "attention"}


def test_the_core_of_attention_keeps_its_inputs_and_makes_its_output_again() -> None:
    found = modules(LLAMA, "core_attn")
    assert again(found) == [["attention"]]
    kept, before = saved(found.operators), saved(plan(LLAMA, NOTHING, execution="fused").operators)
    assert {name: before[name] for name in before.keys() - kept.keys()} == {"attention_statistics": STATISTICS}
    # The output projection saves attention's output from the forward pass; attention saves one of its own again.
    assert saved(found.operators, restored=True) == {"attention_output": 4096, "attention_statistics": STATISTICS}
    assert "attention_output" in saved([found.operators[found.stretches[0].before + 1]])


def test_the_up_projection_of_latent_attention_gives_up_queries_keys_and_values() -> None:
    # 128 heads of 128 + 64 and 128; queries have a rank of 1,536, keys and values one of 512.
    found = modules(DEEPSEEK, "mla_up_proj")
    before, kept = saved(plan(DEEPSEEK, NOTHING, execution="fused").operators), saved(found.operators)
    gone = {name: before[name] for name in before.keys() - kept.keys()}
    assert gone == {
        "query": 128 * 192,
        "key": 128 * 192,
        "value": 128 * 128,
        "query_latent_normed": 1536,
        "key_latent_normed": 512,
        "q_a_norm.statistics": 2,
        "kv_a_norm.statistics": 2,
    }
    assert (kept["query_latent"], kept["key_latent"]) == (1536, 512)
    (stretch,) = found.stretches
    assert again(found) == [["q_a_norm", "q_b_proj", "kv_a_norm", "rotary", "kv_b_proj", "join_keys"]]
    assert found.operators[stretch.before].name == "attention"
    assert stretch.restore is not None
    assert stretch.restore.output_bytes / TOKENS / 2 == 128 * (192 + 192 + 128)
    (copy,) = stretch.restore.forward
    assert (copy.launches, copy.bytes) == (3, 2 * stretch.restore.output_bytes)


def test_the_activation_of_experts_gives_up_its_result_for_each_row() -> None:
    found = modules(DEEPSEEK, "moe_act")
    (stretch,) = found.stretches
    assert again(found) == [["experts_activation"]]
    assert found.operators[stretch.before].name == "experts_fc2"
    assert stretch.restore is not None
    assert (stretch.restore.rows, stretch.restore.output_bytes) == ("routed", 2 * 2048)
    assert "experts_activated" not in saved(found.operators)
    assert "expert_hidden" in saved(found.operators)


def test_norms_run_again_before_the_whole_sub_layer_behind_them() -> None:
    found = modules(DEEPSEEK, "layernorm")
    # The last sub-layer comes first; both give up what 7,168 wide products read.
    assert again(found) == [["post_attention_layernorm"], ["input_layernorm"]]
    ends = [found.operators[s.before + 1].name for s in found.stretches]
    assert ends == ["feed_forward_add", "mixer_add"]
    assert [s.restore and s.restore.output_bytes / TOKENS / 2 for s in found.stretches] == [7168, 7168]
    # Transformer Engine's grouped attention has its norm inside the first product, experts do not.
    assert again(modules(QWEN, "layernorm")) == [["post_attention_layernorm"]]


def test_a_dense_part_runs_again_with_its_norm_and_to_the_end() -> None:
    found = modules(DEEPSEEK, "mlp", layer=0)
    assert again(found) == [["post_attention_layernorm", "gate_up", "activation", "down"]]
    kept = saved(found.operators)
    assert kept["feed_forward_residual"] == 7168
    assert not {"feed_forward_input", "hidden", "activated"} & kept.keys()
    assert found.stretches[0].holds_result


def test_experts_run_again_from_the_router_to_the_shared_ones() -> None:
    found = modules(DEEPSEEK, "moe", "layernorm")
    # The norm's result, which experts keep to run again, is made again first.
    first, second, third = again(found)
    assert (first, third) == (["post_attention_layernorm"], ["input_layernorm"])
    assert (second[0], second[-1]) == ("router", "shared_add")
    assert "dispatch" in second
    assert "feed_forward_input" not in saved(found.operators) | saved(found.operators, restored=True)


def test_a_checkpoint_keeps_what_it_reads_though_no_weight_of_it_is_trained() -> None:
    found = modules(DEEPSEEK, "shared_experts")
    (shared,) = again(found)
    assert shared == ["shared_experts_gate_up", "shared_experts_activation", "shared_experts_down"]
    tensors = [t for op in found.operators for t in op.saved if t.name == "feed_forward_input"]
    assert [tensor.needed_for for tensor in tensors] == ["input_gradient"]


@pytest.mark.parametrize("names", [("core_attn", "mla_up_proj"), ("mla_up_proj", "core_attn")])
def test_queries_are_back_before_attention_reads_them_again(names: tuple[str, ...]) -> None:
    first, second = again(modules(DEEPSEEK, *names))
    assert "q_b_proj" in first
    assert second == ["attention"]

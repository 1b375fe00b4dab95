"""Weights of layers, embedding, head and vision tower: names, shapes and roles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.model.architecture import (
    Architecture,
    CompressedAttention,
    GatedDeltaNet,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Mamba2,
    MixtureOfExperts,
)
from simulator.model.config import read_architecture
from simulator.model.operator import Workload
from simulator.model.operators.layers import layer_operators
from simulator.model.parameter import Parameter
from simulator.model.parameters import (
    component_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    parameter_blocks,
    vision_parameters,
)

MODELS = Path(__file__).parents[1] / "scenarios" / "models"


def shipped(name: str) -> Architecture:
    return read_architecture(MODELS / f"{name}.json")


def shapes(parameters: tuple[Parameter, ...]) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in parameters}


def elements(parameters: tuple[Parameter, ...]) -> int:
    return sum(parameter.elements for parameter in parameters)


def test_llama_layer_has_nine_tensors() -> None:
    model = shipped("llama-3.1-8b")
    assert shapes(layer_parameters(model, model.layers[0])) == {
        "self_attn.q_proj.weight": (4096, 4096),
        "self_attn.k_proj.weight": (1024, 4096),
        "self_attn.v_proj.weight": (1024, 4096),
        "self_attn.o_proj.weight": (4096, 4096),
        "mlp.gate_proj.weight": (14336, 4096),
        "mlp.up_proj.weight": (14336, 4096),
        "mlp.down_proj.weight": (4096, 14336),
        "input_layernorm.weight": (4096,),
        "post_attention_layernorm.weight": (4096,),
    }


def test_kimi_k3_delta_attention_layer_has_the_checkpoint_shapes() -> None:
    model = shipped("kimi-k3")
    held = shapes(layer_parameters(model, model.layers[1]))
    assert held["self_attn.g_proj.weight"] == (12288, 7168)
    assert held["self_attn.q_conv1d.weight"] == (12288, 1, 4)
    assert held["self_attn.f_a_proj.weight"] == (128, 7168)
    assert held["self_attn.f_b_proj.weight"] == (12288, 128)
    assert held["self_attn.b_proj.weight"] == (96, 7168)
    assert held["self_attn.A_log"] == (128,)
    assert held["self_attn.o_norm.weight"] == (128,)
    assert held["mlp.gate.weight"] == (896, 7168)
    assert held["mlp.routed_expert_down_proj.weight"] == (3584, 7168)
    assert held["mlp.shared_experts.gate_proj.weight"] == (6144, 7168)
    assert held["mlp.experts.gate_proj"] == (896, 3584, 3072)
    assert held["mlp.experts.down_proj"] == (896, 3072, 3584)
    assert held["self_attention_res_norm.weight"] == (7168,)
    assert held["mlp_res_proj.weight"] == (1, 7168)
    assert sum(1 for name in held if name.startswith("self_attn.")) == 14


def test_kimi_k3_keeps_the_small_tensors_of_its_delta_rule_in_fp32() -> None:
    model = shipped("kimi-k3")
    wide = {parameter.name for parameter in layer_parameters(model, model.layers[1]) if parameter.dtype == "fp32"}
    assert wide == {
        "self_attn.q_conv1d.weight",
        "self_attn.k_conv1d.weight",
        "self_attn.v_conv1d.weight",
        "self_attn.dt_bias",
        "self_attn.A_log",
        "self_attn.o_norm.weight",
        "mlp.gate.e_score_correction_bias",
    }


def test_kimi_k31_full_attention_layer_has_an_indexer() -> None:
    model = shipped("kimi-k3.1")
    held = [p for p in layer_parameters(model, model.layers[3]) if p.role == "indexer"]
    assert shapes(tuple(held)) == {
        "self_attn.indexer.wq_b.weight": (4096, 1536),
        "self_attn.indexer.wk.weight": (128, 7168),
        "self_attn.indexer.k_norm.weight": (128,),
        "self_attn.indexer.k_norm.bias": (128,),
        "self_attn.indexer.weights_proj.weight": (32, 7168),
    }


def test_kimi_k3_residual_blocks_grow_every_twelve_layers() -> None:
    layers = shipped("kimi-k3").layers
    assert [layers[index].residual_blocks for index in (0, 11, 12, 84, 92)] == [1, 1, 2, 8, 8]


def test_root_of_kimi_k3_ends_with_a_residual_mix() -> None:
    model = shipped("kimi-k3")
    assert shapes(embedding_parameters(model)) == {"model.embed_tokens.weight": (163840, 7168)}
    assert shapes(head_parameters(model)) == {
        "model.norm.weight": (7168,),
        "lm_head.weight": (163840, 7168),
        "model.output_attn_res_norm.weight": (7168,),
        "model.output_attn_res_proj.weight": (1, 7168),
    }


def test_kimi_k3_vision_tower_has_the_checkpoint_shapes() -> None:
    held = shapes(vision_parameters(shipped("kimi-k3")))
    assert held["patch_embed.proj.weight"] == (1024, 3, 14, 14)
    assert held["patch_embed.pos_emb.weight"] == (64 * 64, 1024)
    assert held["encoder.blocks.26.wqkv.weight"] == (4608, 1024)
    assert held["encoder.blocks.0.wo.weight"] == (1024, 1536)
    assert held["proj.0.weight"] == (4096, 4096)
    assert held["proj.2.weight"] == (7168, 4096)
    assert held["post_norm.weight"] == (7168,)
    assert not any(name.endswith("bias") for name in held)


def test_text_model_has_no_vision_parameters() -> None:
    assert vision_parameters(shipped("deepseek-v3")) == ()


def test_tied_embedding_leaves_out_the_head() -> None:
    model = replace(shipped("llama-3.1-8b"), tied_embeddings=True)
    assert shapes(head_parameters(model)) == {"model.norm.weight": (4096,)}


def test_blocks_come_in_order() -> None:
    parts = [block.part for block in parameter_blocks(shipped("kimi-k3"))]
    assert parts[:5] == ["embedding", "kimi delta attention", "dense feed forward", "norms", "residual mix"]
    assert parts[-5:] == ["norms", "head", "residual mix", "vision tower", "projector"]


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.json")))
def test_names_are_unique_inside_a_layer_and_linear_weights_are_matrices(name: str) -> None:
    model = shipped(name)
    for layer in model.layers:
        held = layer_parameters(model, layer)
        assert len(shapes(held)) == len(held)
        assert all(len(p.shape) == 2 and p.name.endswith(".weight") for p in held if p.linear)


def test_prediction_modules_repeat_the_last_layer() -> None:
    model = shipped("deepseek-v3")
    two = replace(model, mtp_layers=2)
    assert elements(mtp_parameters(two)) == 2 * elements(mtp_parameters(model))
    assert len(shapes(mtp_parameters(two))) == len(mtp_parameters(two))


def test_gated_delta_net_has_qwens_shapes() -> None:
    """Qwen3-Next-80B-A3B: 16 key heads and 32 value heads of 128, in a model 2048 wide."""
    held = component_parameters(GatedDeltaNet(16, 32, 128, 128, 4), 2048)
    assert shapes(held)["linear_attn.in_proj_qkv.weight"] == (8192, 2048)
    assert elements(held) == 2048 * (8192 + 4096 + 32 + 32) + 4 * 8192 + 32 + 32 + 128 + 4096 * 2048


def test_mamba_projects_gate_input_states_and_steps_at_once() -> None:
    """Nemotron-3-Nano: 64 heads of 64, 8 groups of 128 states, in a model 2688 wide."""
    held = shapes(component_parameters(Mamba2(64, 64, 8, 128, 4), 2688))
    assert held["mixer.in_proj.weight"] == (4096 + 4096 + 2 * 8 * 128 + 64, 2688)
    assert held["mixer.conv1d.weight"] == (6144, 1, 4)
    assert held["mixer.out_proj.weight"] == (2688, 4096)


def test_compressor_is_twice_as_wide_where_windows_overlap() -> None:
    """DeepSeek-V4-Flash, layers that keep one key for 4 and for 128 tokens."""
    fine = CompressedAttention(64, 512, 1024, 64, 8, 1024, 128, 4, Indexer(64, 128, 512))
    coarse = replace(fine, compress_ratio=128, indexer=None)
    assert shapes(component_parameters(fine, 4096))["self_attn.compressor.kv_proj.weight"] == (1024, 4096)
    assert shapes(component_parameters(coarse, 4096))["self_attn.compressor.kv_proj.weight"] == (512, 4096)
    assert shapes(component_parameters(fine, 4096))["self_attn.o_a_proj.weight"] == (8192, 4096)


def test_shared_indexer_holds_no_weights() -> None:
    own = LatentAttention(64, 2048, 512, 192, 64, 256, indexer=Indexer(32, 128, 2048))
    shared = replace(own, indexer=Indexer(32, 128, 2048, shared=True))
    without = replace(own, indexer=None)
    assert component_parameters(shared, 6144) == component_parameters(without, 6144)
    assert elements(component_parameters(own, 6144)) > elements(component_parameters(without, 6144))


def test_latent_attention_without_query_rank_projects_at_once() -> None:
    model = shipped("kimi-linear-48b-a3b")
    assert shapes(layer_parameters(model, model.layers[3]))["self_attn.q_proj.weight"] == (32 * 192, 2304)


def test_norm_of_query_and_key_spans_a_head_or_all_heads() -> None:
    per_head = shapes(component_parameters(GroupedAttention(48, 8, 128, qk_norm="head"), 3072))
    per_layer = shapes(component_parameters(GroupedAttention(48, 8, 128, qk_norm="layer"), 3072))
    assert (per_head["self_attn.q_norm.weight"], per_head["self_attn.k_norm.weight"]) == ((128,), (128,))
    assert (per_layer["self_attn.q_norm.weight"], per_layer["self_attn.k_norm.weight"]) == ((6144,), (1024,))


def test_gated_attention_doubles_the_query_projection() -> None:
    held = shapes(component_parameters(GroupedAttention(16, 2, 256, output_gate=True), 2048))
    assert held["self_attn.q_proj.weight"] == (2 * 16 * 256, 2048)
    assert held["self_attn.o_proj.weight"] == (2048, 16 * 256)


def test_zero_experts_are_routed_to_but_hold_no_weights() -> None:
    held = shapes(component_parameters(MixtureOfExperts(512, 12, 2048, zero_experts=256), 6144))
    assert held["mlp.gate.weight"] == (768, 6144)
    assert held["mlp.experts.up_proj"] == (512, 6144, 2048)


def test_plain_experts_have_two_matrices_and_biases_where_asked() -> None:
    held = shapes(component_parameters(MixtureOfExperts(4, 2, 10, gated=False, bias=True), 6))
    assert held == {
        "mlp.gate.weight": (4, 6),
        "mlp.experts.up_proj": (4, 6, 10),
        "mlp.experts.up_proj_bias": (4, 10),
        "mlp.experts.down_proj": (4, 10, 6),
        "mlp.experts.down_proj_bias": (4, 6),
    }


def test_hyper_connections_mix_four_streams() -> None:
    plain = shipped("llama-3.1-8b")
    model = replace(plain, layers=tuple(replace(layer, hyper_connections=4) for layer in plain.layers))
    held = shapes(layer_parameters(model, model.layers[0]))
    assert held["hc_attn_fn"] == (24, 16384)
    assert held["hc_ffn_scale"] == (3,)
    assert shapes(head_parameters(model))["hc_head_fn"] == (4, 16384)


def test_shipped_files_are_small_and_say_where_their_dims_come_from() -> None:
    for path in MODELS.glob("*.json"):
        assert path.stat().st_size < 4096
        assert json.loads(path.read_text())["_source"].endswith(".")


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.json")))
def test_operators_use_the_weights_of_their_layer_and_no_others(name: str) -> None:
    model = shipped(name)
    for layer in model.layers:
        held = {parameter.name for parameter in layer_parameters(model, layer)}
        used = {weight for step in layer_operators(model, layer, Workload((64,))) for weight in step.weights}
        assert used == held

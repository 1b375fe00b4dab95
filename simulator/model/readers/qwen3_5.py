"""Qwen3.5 and Qwen3-Next: gated delta nets in most layers, gated full attention in the rest, a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, GatedDeltaNet, GroupedAttention, Mixer
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward, qwen_vision

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")


def read(fields: Fields) -> Architecture:
    """The text model, at the root or below text_config beside vision_config."""
    return qwen_vision.beside(fields, _text_model)


def _text_model(fields: Fields) -> Architecture:
    count = common.layer_count(fields)
    fields.ignore("mamba_ssm_dtype", "mtp_use_dedicated_embeddings")
    architecture = common.decoder(fields, list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True)))
    return replace(architecture, mtp_layers=fields.count("mtp_num_hidden_layers", 0, limit=100))


def _mixers(fields: Fields, count: int) -> list[Mixer]:
    every = fields.size("full_attention_interval", 4)
    by_rule = ["linear_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    kinds = common.layer_list(fields, "layer_types", by_rule, ("linear_attention", "full_attention"))
    full, linear = _full_attention(fields), _delta_net(fields)
    return [full if kind == "full_attention" else linear for kind in kinds]


def _full_attention(fields: Fields) -> GroupedAttention:
    mixer = attention.grouped_attention(fields)
    return replace(
        mixer,
        qk_norm="head",
        output_gate=fields.flag("attn_output_gate", True),
        rotary_dim=int(attention.partial_rotary(fields, 0.25) * mixer.head_dim),
    )


def _delta_net(fields: Fields) -> GatedDeltaNet:
    return GatedDeltaNet(
        k_heads=fields.size("linear_num_key_heads"),
        v_heads=fields.size("linear_num_value_heads"),
        k_dim=fields.size("linear_key_head_dim"),
        v_dim=fields.size("linear_value_head_dim"),
        conv_kernel=fields.size("linear_conv_kernel_dim"),
    )


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    if "num_experts" not in fields:
        return [feed_forward.dense_feed_forward(fields)] * count
    shared = fields.count("shared_expert_intermediate_size", 0)
    mixture = replace(
        feed_forward.mixture_of_experts(fields, "num_experts", "moe_intermediate_size", "num_experts_per_tok"),
        shared_experts=1 if shared else 0,
        shared_intermediate=shared,
        shared_gate=shared > 0,
    )
    sparse = feed_forward.sparse_layers(fields, count)
    fields.ignore("intermediate_size")
    return [mixture if chosen else feed_forward.dense_feed_forward(fields) for chosen in sparse]

"""Qwen3, dense and with experts, alone or beside a vision tower (Qwen3-VL): a norm on each head's q and k."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, GroupedAttention
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward, qwen_vision

MODEL_TYPES = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe")


def read(fields: Fields) -> Architecture:
    """The text model, at the root or below text_config beside vision_config."""
    return qwen_vision.beside(fields, _text_model)


def _text_model(fields: Fields) -> Architecture:
    count = common.layer_count(fields)
    return common.decoder(fields, list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True)))


def _mixers(fields: Fields, count: int) -> list[GroupedAttention]:
    """A window in the layers from max_window_layers on, where use_sliding_window is set."""
    mixer = attention.grouped_attention(fields)
    qkv_bias = mixer.qkv_bias or fields.flag("qkv_bias")
    full = replace(mixer, qkv_bias=qkv_bias, qk_norm="head" if fields.flag("use_qk_norm", True) else "none")
    window, first_window = fields.optional_size("sliding_window"), fields.count("max_window_layers", 0)
    if not fields.flag("use_sliding_window") or window is None:
        return [full] * count
    return [replace(full, window=window) if index >= first_window else full for index in range(count)]


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    if "num_experts" not in fields:
        return [feed_forward.dense_feed_forward(fields)] * count
    mixture = feed_forward.mixture_of_experts(fields, "num_experts", "moe_intermediate_size", "num_experts_per_tok")
    if fields.count("shared_expert_intermediate_size", 0):
        fields.problem("shared_expert_intermediate_size", "expected 0 or nothing: Qwen3 has no shared expert")
    sparse = feed_forward.sparse_layers(fields, count)
    fields.ignore("intermediate_size")
    return [mixture if chosen else feed_forward.dense_feed_forward(fields) for chosen in sparse]

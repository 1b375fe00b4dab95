"""Llama 4: chunked attention in three layers of four, experts beside one shared expert in every n-th layer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, GroupedAttention
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("llama4", "llama4_text")


def read(fields: Fields) -> Architecture:
    """The text model, at the root or below text_config; the vision tower is left out."""
    if "text_config" not in fields:
        return _text_model(fields)
    architecture = _text_model(common.text_part(fields))
    fields.approximate("The vision tower is left out; parameters and time are those of the text model.")
    return common.beside_vision(fields, architecture, None)


def _text_model(fields: Fields) -> Architecture:
    count = common.layer_count(fields)
    return common.decoder(fields, list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True)))


def _mixers(fields: Fields, count: int) -> list[GroupedAttention]:
    """Every fourth layer sees the whole sequence and rotates nothing. The norm of q and k has no weights."""
    fields.ignore("use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale")
    mixer = attention.grouped_attention(fields)
    every = fields.size("no_rope_layer_interval", 4)
    by_rule = [0 if (index + 1) % every == 0 else 1 for index in range(count)]
    rotated = fields.whole_numbers("no_rope_layers", by_rule) or by_rule
    if fields.sound and len(rotated) != count:
        fields.problem("no_rope_layers", f"found {len(rotated)} entries for {count} layers")
    full = replace(mixer, rotary_dim=0)
    chunked = replace(mixer, chunk=fields.optional_size("attention_chunk_size"))
    return [chunked if flag else full for flag in (rotated + by_rule)[:count]]


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    mixture = feed_forward.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok")
    mixture = replace(mixture, shared_experts=1, shared_intermediate=mixture.intermediate)
    dense = feed_forward.dense_feed_forward(fields, "intermediate_size_mlp")
    return [mixture if chosen else dense for chosen in feed_forward.sparse_layers(fields, count)]

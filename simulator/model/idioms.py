"""Spellings of a `config.json` that several families share, read into parts of an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    MixtureOfExperts,
    VisionTower,
)
from simulator.model.fields import MOST_LAYERS, Fields

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def layer_count(fields: Fields) -> int:
    """num_hidden_layers."""
    return fields.size("num_hidden_layers", limit=MOST_LAYERS)


def dtype(fields: Fields) -> str:
    """The type in which the weights are meant to be held; bf16 where the file does not say."""
    fields.ignore("dtype", "torch_dtype")
    name = fields.text(fields.first("dtype", "torch_dtype"), "bfloat16", tuple(_DTYPES))
    return _DTYPES[name]


def note_quantisation(fields: Fields) -> None:
    """Say where the checkpoint is quantised: sizes here are those of bf16."""
    quantisation = fields.part("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "quantised")
        quantisation.ignore_rest()
        fields.approximate(f"The checkpoint's weights are quantised ({method}); sizes are given in bf16.")


def positions(fields: Fields) -> int:
    """max_position_embeddings, or 0 where the file does not say."""
    return fields.count(fields.first("max_position_embeddings", "model_max_length"), 0)


def grouped_attention(fields: Fields) -> GroupedAttention:
    """num_attention_heads, num_key_value_heads, head_dim and attention_bias, in Llama's spelling."""
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    hidden = fields.size("hidden_size")
    head_dim = fields.optional_size("head_dim")
    if fields.sound and heads % kv_heads:
        fields.problem("num_key_value_heads", f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if fields.sound and head_dim is None and hidden % heads:
        fields.problem(
            "num_attention_heads", f"hidden_size {hidden} is not a multiple of {heads} and head_dim is not given"
        )
    bias = fields.flag("attention_bias")
    return GroupedAttention(heads, kv_heads, head_dim or hidden // heads, qkv_bias=bias, output_bias=bias)


def latent_attention(fields: Fields, *, rope: bool = True, indexer: Indexer | None = None) -> LatentAttention:
    """DeepSeek's spelling of multi-head latent attention."""
    fields.ignore("num_key_value_heads", "qk_head_dim", "head_dim")
    if fields.flag("attention_bias"):
        fields.approximate("Biases of the attention projections (attention_bias) are left out.")
    return LatentAttention(
        heads=fields.size("num_attention_heads"),
        q_lora_rank=fields.optional_size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        v_dim=fields.size("v_head_dim"),
        rope=rope,
        indexer=indexer,
    )


def dense_feed_forward(fields: Fields, width: str = "intermediate_size") -> DenseFeedForward:
    """A gated feed-forward part as wide as the field *width* says."""
    return DenseFeedForward(
        fields.size(width), activation=fields.text("hidden_act", "silu"), bias=fields.flag("mlp_bias")
    )


def mixture_of_experts(fields: Fields, experts: str, intermediate: str, top_k: str) -> MixtureOfExperts:
    """Routed experts whose number, width and choice stand in the fields *experts*, *intermediate* and *top_k*."""
    mixture = MixtureOfExperts(
        fields.size(experts),
        fields.size(top_k),
        fields.size(intermediate),
        activation=fields.text("hidden_act", "silu"),
    )
    if fields.sound and mixture.top_k > mixture.experts:
        fields.problem(top_k, f"a token cannot visit {mixture.top_k} of {mixture.experts} experts")
    return mixture


def note_grouped_routing(fields: Fields, groups: str, best: str) -> None:
    """Say where tokens may visit experts of a few groups only: routing here is free of groups."""
    all_groups, best_groups = fields.size(groups, 1), fields.size(best, 1)
    if best_groups < all_groups:
        fields.approximate(
            f"Experts are chosen from the best {best_groups} of {all_groups} groups; routing is read as free of groups."
        )


def router_dtype(fields: Fields) -> str:
    """moe_router_dtype, bf16 where the file does not say."""
    return _DTYPES[fields.text("moe_router_dtype", "bfloat16", tuple(_DTYPES))]


def check_layer_list(fields: Fields, name: str, kinds: list[str], count: int, allowed: tuple[str, ...]) -> None:
    """Note where the list *name* has not one of the *allowed* kinds for each of *count* layers, and mend it."""
    if fields.sound and len(kinds) != count:
        fields.problem(name, f"found {len(kinds)} entries for {count} layers")
    strange = sorted(set(kinds) - set(allowed))
    if fields.sound and strange:
        fields.problem(name, f"found {strange[0][:40]!r}, expected each to be one of {', '.join(allowed)}")
    kinds[:] = (kinds + [allowed[0]] * count)[:count]


def layer_list(fields: Fields, name: str, by_rule: list[str], allowed: tuple[str, ...]) -> list[str]:
    """The list *name* with one of the *allowed* kinds for each layer; *by_rule* where the file has no such list."""
    kinds = fields.texts(name, by_rule)
    check_layer_list(fields, name, kinds, len(by_rule), allowed)
    return kinds


def partial_rotary(fields: Fields, default: float) -> float:
    """partial_rotary_factor, at the root or in rope_parameters: the part of a head's dims that is rotated."""
    rope = fields.part("rope_parameters")
    if rope is None:
        return fields.fraction("partial_rotary_factor", default)
    factor = rope.fraction("partial_rotary_factor", default)
    rope.ignore_rest()
    return factor


def text_part(fields: Fields) -> Fields:
    """The text model's fields below text_config; the root's own where that is no object, which is then a problem."""
    return fields.part("text_config", required=True) or fields


def decoder(fields: Fields, parts: Sequence[tuple[Mixer | None, FeedForward | None]]) -> Architecture:
    """The architecture whose layers are *parts*, with the fields that every decoder has."""
    note_quantisation(fields)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=fields.size("hidden_size"),
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, mixer, feed_forward) for index, (mixer, feed_forward) in enumerate(parts)),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        max_positions=positions(fields),
        dtype=dtype(fields),
    )


def beside_vision(fields: Fields, text: Architecture, vision: VisionTower | None) -> Architecture:
    """The model at the root whose text part is *text*, with its *vision* tower and what the root says of both."""
    note_quantisation(fields)
    fields.ignore("dtype", "torch_dtype")
    return replace(
        text,
        model_type=fields.text("model_type"),
        tied_embeddings=fields.flag("tie_word_embeddings", text.tied_embeddings),
        vision=vision,
    )

"""GPT as Megatron-LM spells it: the fields of its arguments, with model_type "megatron_gpt" for want of one there.

Grouped or multi-head attention, two matrices with a gelu between them or three gated ones, LayerNorm or RMSNorm,
positions learnt or rotated. Defaults are those of its arguments. The vocabulary is the padded one.
"""

from __future__ import annotations

from simulator.model.architecture import Architecture, DenseFeedForward, GroupedAttention, Layer
from simulator.model.fields import MOST_LAYERS, Fields
from simulator.model.idioms import common

MODEL_TYPES = ("megatron_gpt",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike; --swiglu is `swiglu`, --untie-embeddings-and-output-weights and the others likewise."""
    if "num_experts" in fields:
        fields.problem("num_experts", "only models without experts are read; leave it out")
    hidden, bias = fields.size("hidden_size"), not fields.flag("disable_bias_linear")
    kind = fields.text("position_embedding_type", "learned_absolute", ("learned_absolute", "rope", "none"))
    positions, gated = fields.size("max_position_embeddings"), fields.flag("swiglu")
    # Two thirds of four widths, in whole 64s, so that three matrices have as many elements as two.
    usual = max(64, 8 * hidden // 3 // 64 * 64) if gated else 4 * hidden
    width = fields.size("ffn_hidden_size", usual)
    mixer = _attention(fields, hidden, bias=bias, rotated=kind == "rope")
    inner = DenseFeedForward(width, activation="silu" if gated else "gelu", gated=gated, bias=bias)
    count = fields.size("num_layers", limit=MOST_LAYERS)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=hidden,
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, mixer, inner) for index in range(count)),
        tied_embeddings=not fields.flag("untie_embeddings_and_output_weights"),
        norm_bias=fields.text("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "LayerNorm",
        learnt_positions=positions if kind == "learned_absolute" else 0,
        max_positions=positions,
        dtype=common.dtype(fields),
    )


def _attention(fields: Fields, hidden: int, *, bias: bool, rotated: bool) -> GroupedAttention:
    """num_query_groups counts where group_query_attention is set, and kv_channels is a head's width."""
    heads = fields.size("num_attention_heads")
    groups = fields.size("num_query_groups", 1)
    kv_heads = groups if fields.flag("group_query_attention") else heads
    width = fields.optional_size("kv_channels")
    if fields.sound and heads % kv_heads:
        fields.problem("num_query_groups", f"{heads} attention heads cannot share {kv_heads} groups evenly")
    if fields.sound and width is None and hidden % heads:
        fields.problem(
            "num_attention_heads", f"hidden_size {hidden} is no multiple of {heads}, and kv_channels is absent"
        )
    return GroupedAttention(
        heads,
        kv_heads,
        width or max(1, hidden // heads),
        qkv_bias=bias or fields.flag("add_qkv_bias"),
        output_bias=bias,
        rotary_dim=None if rotated else 0,
    )

"""MPT (MosaicML): multi-head attention with ALiBi and two matrices with a gelu between them, mostly without biases."""

from __future__ import annotations

from simulator.model.architecture import Architecture, DenseFeedForward, GroupedAttention, Layer
from simulator.model.fields import MOST_LAYERS, Fields
from simulator.model.idioms import common

MODEL_TYPES = ("mpt",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike, its feed-forward part expansion_ratio times as wide; the head is the embedding's matrix."""
    fields.ignore("attn_config")
    hidden, heads = fields.size("d_model"), fields.size("n_heads")
    if fields.sound and hidden % heads:
        fields.problem("n_heads", f"d_model {hidden} is no multiple of {heads}")
    bias = not fields.flag("no_bias", False)
    mixer = GroupedAttention(heads, heads, max(1, hidden // heads), qkv_bias=bias, output_bias=bias, rotary_dim=0)
    inner = DenseFeedForward(fields.size("expansion_ratio", 4) * hidden, activation="gelu", gated=False, bias=bias)
    count = fields.size("n_layers", limit=MOST_LAYERS)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=hidden,
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, mixer, inner) for index in range(count)),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        max_positions=fields.count("max_seq_len", 0),
        dtype=common.dtype(fields),
    )

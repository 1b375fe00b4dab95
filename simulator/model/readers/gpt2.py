"""GPT-2: multi-head attention and two matrices with a gelu between them, biases throughout, positions learnt."""

from __future__ import annotations

from simulator.model.architecture import Architecture, DenseFeedForward, GroupedAttention, Layer
from simulator.model.fields import MOST_LAYERS, Fields
from simulator.model.idioms import common

MODEL_TYPES = ("gpt2",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike; n_inner is 4 n_embd where it is absent, and the embedding is the head's matrix too."""
    fields.ignore("activation_function", "n_ctx")
    hidden, heads = fields.size("n_embd"), fields.size("n_head")
    if fields.sound and hidden % heads:
        fields.problem("n_head", f"n_embd {hidden} is no multiple of {heads}")
    mixer = GroupedAttention(heads, heads, max(1, hidden // heads), qkv_bias=True, output_bias=True, rotary_dim=0)
    inner = DenseFeedForward(fields.size("n_inner", 4 * hidden), activation="gelu", gated=False, bias=True)
    count, positions = fields.size("n_layer", limit=MOST_LAYERS), fields.count("n_positions", 1024)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=hidden,
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, mixer, inner) for index in range(count)),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        norm_bias=True,
        learnt_positions=positions,
        max_positions=positions,
        dtype=common.dtype(fields),
    )

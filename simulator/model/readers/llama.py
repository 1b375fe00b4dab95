"""Llama and the dense decoders that share its spelling."""

from __future__ import annotations

from simulator.model import idioms
from simulator.model.architecture import Architecture, Layer
from simulator.model.fields import Fields

MODEL_TYPES = ("llama",)


def read(fields: Fields) -> Architecture:
    """Every layer is grouped attention and one gated feed-forward part."""
    attention, feed_forward = idioms.grouped_attention(fields), idioms.dense_feed_forward(fields)
    idioms.note_quantisation(fields)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=fields.size("hidden_size"),
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, attention, feed_forward) for index in range(idioms.layer_count(fields))),
        tied_embeddings=idioms.tied(fields),
        max_positions=idioms.positions(fields),
        dtype=idioms.dtype(fields),
    )

"""Llama and the dense decoders that share its spelling."""

from __future__ import annotations

from simulator.model import idioms
from simulator.model.architecture import Architecture
from simulator.model.fields import Fields

MODEL_TYPES = ("llama",)


def read(fields: Fields) -> Architecture:
    """Every layer is grouped attention and one gated feed-forward part."""
    layer = idioms.grouped_attention(fields), idioms.dense_feed_forward(fields)
    return idioms.decoder(fields, [layer] * idioms.layer_count(fields))

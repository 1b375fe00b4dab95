"""Llama and the dense decoders that share its spelling."""

from __future__ import annotations

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("llama",)


def read(fields: Fields) -> Architecture:
    """Every layer is grouped attention and one gated feed-forward part."""
    layer = attention.grouped_attention(fields), feed_forward.dense_feed_forward(fields)
    return common.decoder(fields, [layer] * common.layer_count(fields))

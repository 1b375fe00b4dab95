"""Starcoder2: grouped attention and two matrices with a gelu between them, biases throughout."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, DenseFeedForward
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common

MODEL_TYPES = ("starcoder2",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike; a sliding window covers the whole sequence unless sliding_window says less."""
    fields.approximate("Norms are read without their shifts, one element a channel.")
    bias = fields.flag("use_bias", True)
    mixer = replace(
        attention.grouped_attention(fields),
        qkv_bias=bias,
        output_bias=bias,
        window=fields.optional_size("sliding_window"),
    )
    inner = DenseFeedForward(fields.size("intermediate_size"), activation="gelu", gated=False, bias=bias)
    fields.ignore("hidden_act", "norm_epsilon", "mlp_type", "norm_type")
    return common.decoder(fields, [(mixer, inner)] * common.layer_count(fields))

"""Mixtral: grouped attention and experts of one width in every layer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("mixtral",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike."""
    mixer = replace(attention.grouped_attention(fields), window=fields.optional_size("sliding_window"))
    mixture = feed_forward.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok")
    return common.decoder(fields, [(mixer, mixture)] * common.layer_count(fields))

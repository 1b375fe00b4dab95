"""Mixtral: grouped attention and experts of one width in every layer."""

from __future__ import annotations

from dataclasses import replace

from simulator.model import idioms
from simulator.model.architecture import Architecture
from simulator.model.fields import Fields

MODEL_TYPES = ("mixtral",)


def read(fields: Fields) -> Architecture:
    """Every layer is alike."""
    attention = replace(idioms.grouped_attention(fields), window=fields.optional_size("sliding_window"))
    mixture = idioms.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok")
    return idioms.decoder(fields, [(attention, mixture)] * idioms.layer_count(fields))

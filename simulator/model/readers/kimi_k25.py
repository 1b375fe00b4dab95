"""Kimi-K2.5: the text model of Kimi-K2 beside a MoonViT vision tower."""

from __future__ import annotations

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.idioms import common, moonvit
from simulator.model.readers import deepseek_v3

MODEL_TYPES = ("kimi_k25",)


def read(fields: Fields) -> Architecture:
    """The text model stands below text_config."""
    fields.ignore("use_unified_vision_chunk")
    architecture = deepseek_v3.read(common.text_part(fields))
    return common.beside_vision(fields, architecture, moonvit.read(fields, architecture.hidden))

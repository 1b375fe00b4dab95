"""Qwen's vision towers since Qwen3-VL, as `vision_config` spells them."""

from __future__ import annotations

from collections.abc import Callable

from simulator.model.architecture import Architecture, VisionTower
from simulator.model.fields import Fields
from simulator.model.idioms import common


def read(fields: Fields, text_hidden: int) -> VisionTower | None:
    """The tower below vision_config, or None where the file has none; its merger ends *text_hidden* wide."""
    vision = fields.part("vision_config")
    if vision is None:
        return None
    hidden, merge = vision.size("hidden_size"), vision.size("spatial_merge_size", 2)
    if vision.size("out_hidden_size", text_hidden) != text_hidden and vision.sound:
        vision.problem("out_hidden_size", f"the language model is {text_hidden} wide")
    if vision.size("in_channels", 3) != 3:
        vision.problem("in_channels", "expected 3, the colours of an image")
    vision.ignore("hidden_act")
    return VisionTower(
        layers=vision.size("depth", limit=1000),
        hidden=hidden,
        qkv_hidden=hidden,
        heads=vision.size("num_heads"),
        intermediate=vision.size("intermediate_size"),
        patch=vision.size("patch_size"),
        temporal_patch=vision.size("temporal_patch_size", 1),
        merge=merge,
        output=text_hidden,
        position_parameters=vision.size("num_position_embeddings") * hidden,
        projector_hidden=merge * merge * hidden,
        deepstack_layers=tuple(vision.whole_numbers("deepstack_visual_indexes", [])),
        final_norm=False,
    )


def beside(fields: Fields, text_model: Callable[[Fields], Architecture]) -> Architecture:
    """What *text_model* reads: at the root, or below text_config beside vision_config."""
    if "text_config" not in fields:
        return text_model(fields)
    architecture = text_model(common.text_part(fields))
    return common.beside_vision(fields, architecture, read(fields, architecture.hidden))

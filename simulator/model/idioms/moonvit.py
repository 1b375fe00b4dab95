"""Moonshot's vision towers (MoonViT), as `vision_config` of Kimi-K2.5 and Kimi-K3 spells them."""

from __future__ import annotations

from simulator.model.architecture import VisionTower
from simulator.model.fields import Fields

_NO_COST = (
    "activation_func",
    "init_pos_emb_time",
    "merge_type",
    "mlp_type",
    "mm_hidden_size",
    "pos_emb_interpolation_mode",
    "pos_emb_type",
    "projector_hidden_act",
    "projector_ln_eps",
    "text_hidden_size",
    "video_attn_type",
)


def read(fields: Fields, text_hidden: int) -> VisionTower | None:
    """The tower below vision_config, or None where the file has none; its projector ends *text_hidden* wide."""
    vision = fields.part("vision_config")
    if vision is None:
        return None
    hidden, merge = vision.size("vt_hidden_size"), vision.whole_numbers("merge_kernel_size", [2, 2])
    if vision.sound and (len(merge) != 2 or merge[0] != merge[1] or not merge[0]):
        vision.problem("merge_kernel_size", f"found {merge[:4]}, expected two equal sides of a square of patches")
    if vision.sound and vision.size("text_hidden_size", text_hidden) != text_hidden:
        vision.problem("text_hidden_size", f"the language model is {text_hidden} wide")
    vision.ignore(*_NO_COST)
    biases = {vision.flag("linear_bias", True), vision.flag("attn_bias", True)}
    if len(biases) == 2:
        vision.problem("attn_bias", "differs from linear_bias: expected biases on all linear layers or on none")
    side = merge[0] if merge else 2
    return VisionTower(
        layers=vision.size("vt_num_hidden_layers", limit=1000),
        hidden=hidden,
        qkv_hidden=vision.size("qkv_hidden_size", hidden),
        heads=vision.size("vt_num_attention_heads"),
        intermediate=vision.size("vt_intermediate_size"),
        patch=vision.size("patch_size"),
        merge=side,
        output=text_hidden,
        position_parameters=vision.size("init_pos_emb_height") * vision.size("init_pos_emb_width") * hidden,
        bias=biases == {True},
        norm="rms" if vision.text("norm_type", "layernorm", ("layernorm", "rmsnorm")) == "rmsnorm" else "layer",
        patch_bias=vision.flag("patch_embed_proj_bias", True),
        projector=vision.text("mm_projector_type", "patchmerger", ("patchmerger", "patchmergerv2")),
        projector_hidden=side * side * hidden,
    )

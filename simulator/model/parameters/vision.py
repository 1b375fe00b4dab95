"""Parameters of a vision tower and of its projector into the language model.

Shapes follow Kimi-K3's checkpoint (MoonViT: fused qkv, two-matrix MLP, learnt positions) and, with biases, LayerNorm
and deepstack mergers, Qwen3-VL's.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import VisionTower
from simulator.model.parameter import Parameter, linear, norm

_COLOURS = 3


def tower_parameters(tower: VisionTower) -> Iterator[Parameter]:
    """Patch embedding, positions, transformer blocks and final norm."""
    patch = (_COLOURS, tower.patch, tower.patch) if tower.temporal_patch == 1 else _video_patch(tower)
    yield Parameter("patch_embed.proj.weight", (tower.hidden, *patch), "vision")
    if tower.patch_bias:
        yield Parameter("patch_embed.proj.bias", (tower.hidden,), "vision")
    if tower.position_parameters:
        rows = tower.position_parameters // tower.hidden
        yield Parameter("patch_embed.pos_emb.weight", (rows, tower.hidden), "vision")
    for block in range(tower.layers):
        yield from _block(tower, f"encoder.blocks.{block}")
    if tower.final_norm:
        yield from norm("encoder.final_layernorm", tower.hidden, "vision", bias=tower.norm == "layer")


def _video_patch(tower: VisionTower) -> tuple[int, ...]:
    return (_COLOURS, tower.temporal_patch, tower.patch, tower.patch)


def _block(tower: VisionTower, name: str) -> Iterator[Parameter]:
    layer_norm = tower.norm == "layer"
    yield from norm(f"{name}.norm0", tower.hidden, "vision", bias=layer_norm)
    yield from norm(f"{name}.norm1", tower.hidden, "vision", bias=layer_norm)
    yield from linear(f"{name}.wqkv", 3 * tower.qkv_hidden, tower.hidden, "vision", bias=tower.bias)
    yield from linear(f"{name}.wo", tower.hidden, tower.qkv_hidden, "vision", bias=tower.bias)
    if tower.gated:
        yield from linear(f"{name}.mlp.gate", tower.intermediate, tower.hidden, "vision", bias=tower.bias)
    yield from linear(f"{name}.mlp.fc0", tower.intermediate, tower.hidden, "vision", bias=tower.bias)
    yield from linear(f"{name}.mlp.fc1", tower.hidden, tower.intermediate, "vision", bias=tower.bias)


def projector_parameters(tower: VisionTower) -> Iterator[Parameter]:
    """The merger of *merge* x *merge* patches into one token, and one more merger for each deepstack layer.

    "patchmergerv2" has no biases and norms its output; "patchmerger" has biases and norms each patch before merging.
    """
    merged = tower.hidden * tower.merge**2
    biased = tower.projector != "patchmergerv2"
    if biased:
        yield from norm("pre_norm", tower.hidden, "projector", bias=True)
    yield from linear("proj.0", tower.projector_hidden, merged, "projector", bias=biased)
    yield from linear("proj.2", tower.output, tower.projector_hidden, "projector", bias=biased)
    if not biased:
        yield from norm("post_norm", tower.output, "projector")
    for layer in tower.deepstack_layers:
        yield from norm(f"deepstack.{layer}.norm", merged, "projector", bias=True)
        yield from linear(f"deepstack.{layer}.proj.0", tower.projector_hidden, merged, "projector", bias=True)
        yield from linear(f"deepstack.{layer}.proj.2", tower.output, tower.projector_hidden, "projector", bias=True)

"""The vision tower and its projector: patch embedding, bidirectional transformer blocks, merging into language tokens.

Per patch and block 2 (3 h q + q h + 2 h i) FLOPs of products and 4 q S of attention over the image's S patches
(models_and_formulas section 3.10). Attention never crosses two images. Ranks that split the language model's layers
hold the whole tower each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from simulator.model.architecture import VisionTower
from simulator.model.operator import Operator, Workload, keep_once
from simulator.model.operators.activation import activation
from simulator.model.operators.attention_core import ATTENTION_OUTPUT, AttentionShape, flash_attention
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import Lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, layer_norm, rms_norm
from simulator.model.operators.residual import residual_add
from simulator.model.operators.rotary import rotary

_COLOURS = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that follow each other, with weights of one role."""

    role: Literal["vision", "projector"]
    operators: tuple[Operator, ...]
    block: bool = False
    """Whether it is a transformer block, which activation checkpointing wraps."""


def segments(tower: VisionTower, workload: Workload) -> tuple[Segment, ...]:
    """*tower* and its projector over the workload's images, in order; none without images."""
    if not workload.image_patches:
        return ()
    patches = replace(workload, sequence_lengths=workload.image_patches, tp=1, cp=1, etp=1)
    lane = token_lane(patches)
    found = [Segment("vision", tuple(_patch_embedding(tower, lane)))]
    for block in range(tower.layers):
        whole = keep_once(_block(tower, f"encoder.blocks.{block}", lane, patches))
        found.append(Segment("vision", whole, block=True))
        if block in tower.deepstack_layers:
            merger = _merger(tower, lane, f"deepstack.{block}.norm", f"deepstack.{block}.proj", merged=True)
            found.append(Segment("projector", keep_once(merger)))
    if tower.final_norm:
        found.append(Segment("vision", (_norm(tower, lane, "encoder.final_layernorm", "vision_residual"),)))
    return (*found, Segment("projector", keep_once(_projector(tower, lane))))


def operators(tower: VisionTower, workload: Workload) -> tuple[Operator, ...]:
    """All operators of the segments."""
    return tuple(operator for segment in segments(tower, workload) for operator in segment.operators)


def place_images(tower: VisionTower, workload: Workload) -> Operator:
    """Image tokens put into their places among the embeddings, each rank's own; backward, their gradients picked out.

    Deepstack's additions of merged features to the first layers' results are as large and count here as well.
    """
    tokens = sum(workload.image_patches) // tower.merge**2
    own = tokens * workload.own_tokens / sum(workload.sequence_lengths)
    moved = 2.0 * own * tower.output * workload.activation_bytes
    launches = 1 + len(tower.deepstack_layers)
    forward = pointwise(moved * launches, kind="scatter_put", launches=launches)
    backward = pointwise(moved * launches, kind="gather", launches=launches)
    return Operator("place_images", (forward,), (backward,))


def _norm(tower: VisionTower, lane: Lane, name: str, source: str, width: int | None = None) -> Operator:
    norm = layer_norm if tower.norm == "layer" else rms_norm
    return norm(lane, name, source, NormShape(tower.hidden if width is None else width), f"{name}.weight")


def _patch_embedding(tower: VisionTower, lane: Lane) -> Iterator[Operator]:
    """A convolution whose stride is its size: one product over each patch's pixels. Pixels need no gradient."""
    pixels, weight = _COLOURS * tower.patch**2 * tower.temporal_patch, ("patch_embed.proj.weight",)
    whole = linear(lane, "patch_embed", "pixels", pixels, tower.hidden, weight, bias=tower.patch_bias)
    yield replace(whole, backward=())
    if tower.position_parameters:
        one = lane.tensor_bytes(tower.hidden)
        table = lane.element_bytes * tower.position_parameters
        yield Operator(
            "position_embed",
            forward=(pointwise(3 * one, lane.count * tower.hidden),),
            backward_weight=(pointwise(one + 2 * table, kind="scatter"),),
            weights=("patch_embed.pos_emb.weight",),
            output_bytes=one,
        )


def _block(tower: VisionTower, name: str, lane: Lane, patches: Workload) -> Iterator[Operator]:
    hidden, inner = tower.hidden, tower.qkv_hidden
    head_dim = inner // tower.heads
    yield _norm(tower, lane, f"{name}.norm0", "attention_residual")
    yield linear(lane, "wqkv", "attention_input", hidden, 3 * inner, (f"{name}.wqkv.weight",), bias=tower.bias)
    yield rotary(lane, inner, inner)
    shape = AttentionShape(tower.heads, tower.heads, head_dim, head_dim)
    yield flash_attention(lane, patches, shape, sum(n * n for n in patches.sequence_lengths))
    yield linear(lane, "wo", ATTENTION_OUTPUT, inner, hidden, (f"{name}.wo.weight",), bias=tower.bias)
    yield residual_add(lane, "attention_add", hidden)
    yield _norm(tower, lane, f"{name}.norm1", "mlp_residual")
    yield from _mlp(tower, name, lane)
    yield residual_add(lane, "mlp_add", hidden)


def _mlp(tower: VisionTower, name: str, lane: Lane) -> Iterator[Operator]:
    hidden, width = tower.hidden, tower.intermediate
    if tower.gated:
        yield linear(lane, "gate", "mlp_input", hidden, width, (f"{name}.mlp.gate.weight",), bias=tower.bias)
    first = (f"{name}.mlp.fc0.weight",)
    yield linear(lane, "fc0", "mlp_input", hidden, width, first, bias=tower.bias, shares_input=tower.gated)
    function = "silu" if tower.gated else "gelu"
    yield activation(lane, "mlp_activation", "mlp_hidden", width, function, gated=tower.gated)
    yield linear(lane, "fc1", "mlp_activated", width, hidden, (f"{name}.mlp.fc1.weight",), bias=tower.bias)


def _projector(tower: VisionTower, lane: Lane) -> Iterator[Operator]:
    """patchmergerv2 norms its output and has no biases; patchmerger norms each patch first."""
    if tower.projector != "patchmergerv2":
        yield from _merger(tower, lane, "pre_norm", "proj", merged=False)
        return
    merged = _merged(tower, lane)
    yield from _two_layers(tower, merged, "proj", bias=False)
    yield rms_norm(merged, "post_norm", "projected", NormShape(tower.output), "post_norm.weight")


def _merger(tower: VisionTower, lane: Lane, norm: str, name: str, *, merged: bool) -> Iterator[Operator]:
    """A LayerNorm over each patch, or over the *merged* square of patches, and two linear layers with biases."""
    wide = _merged(tower, lane)
    rows, width = (wide, tower.hidden * tower.merge**2) if merged else (lane, tower.hidden)
    yield layer_norm(rows, norm, f"{name}_residual", NormShape(width), f"{norm}.weight")
    yield from _two_layers(tower, wide, name, bias=True)


def _two_layers(tower: VisionTower, merged: Lane, name: str, *, bias: bool) -> Iterator[Operator]:
    width, inner = tower.hidden * tower.merge**2, tower.projector_hidden
    yield linear(merged, f"{name}.0", f"{name}_input", width, inner, (f"{name}.0.weight",), bias=bias)
    yield activation(merged, f"{name}_activation", f"{name}_hidden", inner, "gelu", gated=False)
    yield linear(merged, f"{name}.2", f"{name}_activated", inner, tower.output, (f"{name}.2.weight",), bias=bias)


def _merged(tower: VisionTower, lane: Lane) -> Lane:
    """Language tokens: one for each square of patches."""
    return replace(lane, count=lane.count // tower.merge**2)

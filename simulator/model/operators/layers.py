"""Layers: operators of whole layers, of the embedding and of the loss, in forward order.

A sub-layer is [residual mix], norm, mixer or feed-forward part, addition to the residual. Tensors that several
operators keep are listed once (`keep_once`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from simulator.model.architecture import Architecture, FeedForward, Layer, Mixer
from simulator.model.operator import Operator, Workload, keep_once
from simulator.model.operators import loss, vision
from simulator.model.operators.embedding import embedding
from simulator.model.operators.hyper_connections import read_streams, write_streams
from simulator.model.operators.lane import Lane, token_lane
from simulator.model.operators.norm import NormShape, rms_norm
from simulator.model.operators.residual import residual_add
from simulator.model.operators.residual_mix import open_block, residual_mix


def component_operators(component: Mixer | FeedForward, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of one mixer or feed-forward part, from the file of its kind."""
    return tuple(import_module(f"{__package__}.{component.kind}").operators(component, hidden, workload))


def layer_operators(architecture: Architecture, layer: Layer, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *layer*, norms and residual additions included."""
    lane = token_lane(workload)
    found: list[Operator] = []
    if layer.mixer is not None:
        inner = component_operators(layer.mixer, architecture.hidden, workload)
        found += _sub_layer(architecture, layer, lane, "mixer", inner)
    if layer.feed_forward is not None:
        inner = component_operators(layer.feed_forward, architecture.hidden, workload)
        found += _sub_layer(architecture, layer, lane, "feed_forward", inner)
    return keep_once(found)


def embedding_operators(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """The input embedding."""
    return (embedding(architecture, workload),)


def loss_operators(architecture: Architecture, workload: Workload, variant: loss.Variant) -> tuple[Operator, ...]:
    """Final norm, output projection and cross-entropy in the given *variant*."""
    return keep_once(loss.operators(architecture, workload, variant))


def vision_operators(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """The vision tower and its projector over the workload's images; none for a text model or without images."""
    return () if architecture.vision is None else vision.operators(architecture.vision, workload)


def layer_input_bytes(architecture: Architecture, layer: Layer, workload: Workload) -> float:
    """What full recomputation keeps of *layer*: its input, and the residual block that it opens."""
    one = token_lane(workload).tensor_bytes(architecture.hidden)
    return one * (layer.hyper_connections + (1 if _opens_block(architecture, layer) else 0))


def _sub_layer(
    architecture: Architecture, layer: Layer, lane: Lane, part: str, inner: tuple[Operator, ...]
) -> Iterator[Operator]:
    hidden = architecture.hidden
    source = f"{part}_residual"
    first = part == "mixer" or layer.mixer is None
    if architecture.attn_res_block:
        yield from _residual_mixes(architecture, layer, lane, part, first=first)
        source = f"{part}_mixed"
    if layer.hyper_connections > 1:
        name = "attn" if part == "mixer" else "ffn"
        weights = tuple(f"hc_{name}_{kind}" for kind in ("fn", "base", "scale"))
        yield read_streams(lane, f"{part}_streams", source, hidden, layer.hyper_connections, weights)
        source = f"{part}_read"
    norm = "input_layernorm" if part == "mixer" else "post_attention_layernorm"
    yield rms_norm(lane, norm, source, NormShape(hidden), f"{norm}.weight")
    yield from inner
    yield from _extra_norms(layer, lane, part, hidden)
    if layer.hyper_connections > 1:
        yield write_streams(lane, f"{part}_write", f"{part}_output", hidden, layer.hyper_connections)
    else:
        yield residual_add(lane, f"{part}_add", hidden)


def _extra_norms(layer: Layer, lane: Lane, part: str, hidden: int) -> Iterator[Operator]:
    """Norms behind the sub-layers: the first behind the mixer, the others behind the feed-forward part."""
    numbers = range(layer.extra_norms)
    behind = numbers[:1] if part == "mixer" else numbers[1:]
    if layer.feed_forward is None or layer.mixer is None:
        behind = numbers
    for number in behind:
        name = f"extra_layernorm.{number}"
        yield rms_norm(lane, name, f"{part}_output.{number}", NormShape(hidden), f"{name}.weight")


def _opens_block(architecture: Architecture, layer: Layer) -> bool:
    return bool(architecture.attn_res_block) and layer.index % architecture.attn_res_block == 0


def _residual_mixes(
    architecture: Architecture, layer: Layer, lane: Lane, part: str, *, first: bool
) -> Iterator[Operator]:
    """The first sub-layer mixes before a new block is opened, so it sees one less; without blocks it mixes none."""
    opens = first and _opens_block(architecture, layer)
    candidates = layer.residual_blocks + (0 if opens else 1)
    prefix = "self_attention" if part == "mixer" else "mlp"
    if candidates > 1:
        weights = (f"{prefix}_res_norm.weight", f"{prefix}_res_proj.weight")
        yield residual_mix(lane, f"{part}_residual_mix", architecture.hidden, candidates, weights)
    if opens:
        yield open_block(lane, architecture.hidden)

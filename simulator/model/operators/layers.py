"""Layers: operators of whole layers, of the embedding and of the loss, in forward order.

A sub-layer is [residual mix], norm, mixer or feed-forward part, addition to the residual. Tensors that several
operators keep are listed once (`keep_once`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    MixtureOfExperts,
)
from simulator.model.operator import Operator, Workload, keep_once, part_of
from simulator.model.operators import loss, vision
from simulator.model.operators.compact_storage import stored_compactly
from simulator.model.operators.embedding import embedding
from simulator.model.operators.float8 import in_float8
from simulator.model.operators.hyper_connections import read_streams, write_streams
from simulator.model.operators.lane import FEED_FORWARD_INPUT, MIXER_INPUT, Lane, own_lane
from simulator.model.operators.norm import NormShape, either_norm
from simulator.model.operators.overlapped_tensor_parallel import beside_products
from simulator.model.operators.residual import residual_add
from simulator.model.operators.residual_mix import residual_mix
from simulator.model.split import share


def component_operators(component: Mixer | FeedForward, hidden: int, workload: Workload) -> tuple[Operator, ...]:
    """Operators of one rank's share of a mixer or feed-forward part, from the file of its kind."""
    held = share(component, workload.tp, workload.etp)
    return tuple(import_module(f"{__package__}.{component.kind}").operators(held, hidden, workload))


def layer_operators(architecture: Architecture, layer: Layer, workload: Workload) -> tuple[Operator, ...]:
    """Operators of *layer* on one rank, norms, residual additions and the layer's communication included."""
    return keep_once(listed_operators(architecture, layer, workload))


def listed_operators(architecture: Architecture, layer: Layer, workload: Workload) -> tuple[Operator, ...]:
    """The same, each with all that it saves, whether others save it too or not."""
    lane, hidden = own_lane(workload), architecture.hidden
    found: list[Operator] = []
    for part, component in (("mixer", layer.mixer), ("feed_forward", layer.feed_forward)):
        if component is not None:
            inner = component_operators(component, hidden, workload)
            found += _sub_layer(architecture, layer, lane, part, inner, dropout=workload.dropout)
    return beside_products(stored_compactly(in_float8(found, workload), workload.float8), workload)


def embedding_operators(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """The input embedding, and its communication."""
    return embedding(architecture, workload)


def loss_operators(architecture: Architecture, workload: Workload, variant: loss.Variant) -> tuple[Operator, ...]:
    """Final norm, output projection and cross-entropy in the given *variant*."""
    return keep_once(loss.operators(architecture, workload, variant))


def vision_operators(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """The vision tower and its projector over the workload's images; none for a text model or without images."""
    return () if architecture.vision is None else vision.operators(architecture.vision, workload)


def _sub_layer(
    architecture: Architecture, layer: Layer, lane: Lane, part: str, inner: tuple[Operator, ...], *, dropout: bool
) -> Iterator[Operator]:
    hidden, source = architecture.hidden, f"{part}_residual"
    if layer.residual_blocks:
        yield _residual_mix(layer, lane, part, hidden)
        source = f"{part}_mixed"
    if layer.hyper_connections > 1:
        name = "attn" if part == "mixer" else "ffn"
        weights = tuple(f"hc_{name}_{kind}" for kind in ("fn", "base", "scale"))
        yield read_streams(lane, f"{part}_streams", source, hidden, layer.hyper_connections, weights)
        source = f"{part}_read"
    norm = "input_layernorm" if part == "mixer" else "post_attention_layernorm"
    first = either_norm(lane, norm, source, NormShape(hidden), f"{norm}.weight", bias=architecture.norm_bias)
    yield from _in_modules(layer, part, first, inner)
    yield from _extra_norms(architecture, layer, lane, part)
    if layer.hyper_connections > 1:
        yield write_streams(lane, f"{part}_write", f"{part}_output", hidden, layer.hyper_connections)
    else:
        yield residual_add(lane, f"{part}_add", hidden, dropout=dropout)


def _in_modules(layer: Layer, part: str, norm: Operator, inner: tuple[Operator, ...]) -> Iterator[Operator]:
    """A sub-layer's *norm* and operators as Megatron-LM with Transformer Engine cuts them into modules.

    Its norms stand alone before latent attention and before experts; elsewhere they are part of the first product.
    """
    component, made = (layer.mixer, MIXER_INPUT) if part == "mixer" else (layer.feed_forward, FEED_FORWARD_INPUT)
    norm = replace(norm, makes=made)
    if isinstance(component, DenseFeedForward):
        return part_of("mlp", (norm, *inner))
    if isinstance(component, MixtureOfExperts):
        inner = tuple(part_of("moe", inner))
    alone = isinstance(component, MixtureOfExperts | LatentAttention)
    return iter((*(part_of("layernorm", [norm]) if alone else [norm]), *inner))


def _extra_norms(architecture: Architecture, layer: Layer, lane: Lane, part: str) -> Iterator[Operator]:
    """Norms behind the sub-layers: the first behind the mixer, the others behind the feed-forward part."""
    numbers = range(layer.extra_norms)
    behind = numbers[:1] if part == "mixer" else numbers[1:]
    if layer.feed_forward is None or layer.mixer is None:
        behind = numbers
    for number in behind:
        name = f"extra_layernorm.{number}"
        source, shape = f"{part}_output.{number}", NormShape(architecture.hidden)
        yield either_norm(lane, name, source, shape, f"{name}.weight", bias=architecture.norm_bias)


def _residual_mix(layer: Layer, lane: Lane, part: str, hidden: int) -> Operator:
    """The mix of all blocks and the current residual; a block that the layer opens counts before both sub-layers."""
    prefix = "self_attention" if part == "mixer" else "mlp"
    weights = (f"{prefix}_res_norm.weight", f"{prefix}_res_proj.weight")
    return residual_mix(lane, f"{part}_residual_mix", hidden, layer.residual_blocks + 1, weights)

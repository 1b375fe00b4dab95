"""Parameters: every weight tensor of a model, with its checkpoint shape.

Each kind of mixer and feed-forward part has a file of its name here, with `parameters(component, hidden)` and, for a
mixer, `cache(component)`; a new kind is one more file. Names inside a block come without the block's prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache as remember
from importlib import import_module
from math import ceil

from simulator.model.architecture import Architecture, FeedForward, Layer, Mixer
from simulator.model.cache import Cache
from simulator.model.parameter import Parameter, ParameterBlock, linear, norm
from simulator.model.parameters.vision import projector_parameters, tower_parameters


@remember
def component_parameters(component: Mixer | FeedForward, hidden: int) -> tuple[Parameter, ...]:
    """The weights of one mixer or feed-forward part in a model *hidden* wide."""
    return tuple(import_module(f"{__name__}.{component.kind}").parameters(component, hidden))


@remember
def mixer_cache(mixer: Mixer) -> Cache:
    """What one layer's mixer keeps of the past while it decodes."""
    found: Cache = import_module(f"{__name__}.{mixer.kind}").cache(mixer)
    return found


def layer_parameters(architecture: Architecture, layer: Layer) -> tuple[Parameter, ...]:
    """All weights of *layer*: mixer, feed-forward part, norms, residual mixing."""
    return tuple(parameter for block in _layer_blocks(architecture, layer) for parameter in block.parameters)


def embedding_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """The input embedding, which with tied embeddings is the head's matrix too, and the table of positions."""
    return (*token_parameters(architecture), *position_parameters(architecture))


def token_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """The table of tokens."""
    shape = (architecture.vocabulary, architecture.hidden)
    return (Parameter("model.embed_tokens.weight", shape, "embedding"),)


def position_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """The table of positions, where they are learnt."""
    shape = (architecture.learnt_positions, architecture.hidden)
    return (Parameter("model.embed_positions.weight", shape, "embedding"),) if architecture.learnt_positions else ()


def head_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """What stands at the root behind the layers: the final norm, lm_head (unless tied) and the last residual mix."""
    return tuple(parameter for block in _head_blocks(architecture) for parameter in block.parameters)


def mtp_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """The multi-token-prediction modules: two norms, the projection of hidden and embedding, the layers, a norm.

    Embedding and head are the main model's (DeepSeek-V3 report, section 2.2). Counted in no total.
    """
    modules = range(architecture.mtp_layers)
    return tuple(
        replace(parameter, name=f"{module}.{parameter.name}")
        for module in modules
        for parameter in mtp_module_parameters(architecture)
    )


def mtp_module_parameters(architecture: Architecture, tp: int = 1) -> tuple[Parameter, ...]:
    """One such module; of its projection, one of *tp* ranks holds a share of the rows."""
    return tuple(_mtp_module(architecture, ceil(architecture.hidden / tp)))


def _mtp_module(architecture: Architecture, projected: int) -> Iterator[Parameter]:
    hidden = architecture.hidden
    yield from norm("enorm", hidden, "mtp")
    yield from norm("hnorm", hidden, "mtp")
    yield from linear("eh_proj", projected, 2 * hidden, "mtp")
    for position, layer in enumerate(architecture.mtp_template()):
        for parameter in layer_parameters(architecture, layer):
            yield replace(parameter, name=f"{position}.{parameter.name}")
    yield from norm("shared_head.norm", hidden, "mtp")


def vision_parameters(architecture: Architecture) -> tuple[Parameter, ...]:
    """The vision tower and its projector; nothing for a text model."""
    if architecture.vision is None:
        return ()
    return (*tower_parameters(architecture.vision), *projector_parameters(architecture.vision))


def parameter_blocks(architecture: Architecture) -> Iterator[ParameterBlock]:
    """Every block in order: embedding, each layer's parts, final norm, head, residual mix, mtp, vision, projector."""
    yield ParameterBlock("", "embedding", token_parameters(architecture))
    if architecture.learnt_positions:
        yield ParameterBlock("", "positions", position_parameters(architecture))
    for layer in architecture.layers:
        yield from _layer_blocks(architecture, layer)
    yield from _head_blocks(architecture)
    if architecture.mtp_layers:
        yield ParameterBlock("model.mtp", "mtp", mtp_parameters(architecture))
    if architecture.vision is not None:
        yield ParameterBlock("vision_tower", "vision tower", tuple(tower_parameters(architecture.vision)))
        yield ParameterBlock("mm_projector", "projector", tuple(projector_parameters(architecture.vision)))


def _layer_blocks(architecture: Architecture, layer: Layer) -> Iterator[ParameterBlock]:
    name = f"model.layers.{layer.index}"
    for component in (layer.mixer, layer.feed_forward):
        if component is not None:
            held = component_parameters(component, architecture.hidden)
            yield ParameterBlock(name, component.kind.replace("_", " "), held, layer.index)
    yield ParameterBlock(name, "norms", tuple(_norms(architecture, layer)), layer.index)
    mixing = tuple(_residual_mix(architecture, layer))
    if mixing:
        yield ParameterBlock(name, "residual mix", mixing, layer.index)


def _norms(architecture: Architecture, layer: Layer) -> Iterator[Parameter]:
    hidden, bias = architecture.hidden, architecture.norm_bias
    if layer.mixer is not None:
        yield from norm("input_layernorm", hidden, bias=bias)
    if layer.feed_forward is not None:
        yield from norm("post_attention_layernorm", hidden, bias=bias)
    for number in range(layer.extra_norms):
        yield from norm(f"extra_layernorm.{number}", hidden, bias=bias)


def _residual_mix(architecture: Architecture, layer: Layer) -> Iterator[Parameter]:
    """AttnRes scores with one norm and one vector a sub-layer; hyper-connections have one matrix (mHC) a sub-layer."""
    hidden, streams = architecture.hidden, layer.hyper_connections
    if architecture.attn_res_block:
        for name in ("self_attention", "mlp"):
            yield from norm(f"{name}_res_norm", hidden, "residual_mix")
            yield Parameter(f"{name}_res_proj.weight", (1, hidden), "residual_mix")
    if streams > 1:
        mixes = (2 + streams) * streams
        for name in ("attn", "ffn"):
            yield Parameter(f"hc_{name}_fn", (mixes, streams * hidden), "residual_mix", dtype="fp32")
            yield Parameter(f"hc_{name}_base", (mixes,), "residual_mix", dtype="fp32")
            yield Parameter(f"hc_{name}_scale", (3,), "residual_mix", dtype="fp32")


def _head_blocks(architecture: Architecture) -> Iterator[ParameterBlock]:
    hidden = architecture.hidden
    yield ParameterBlock("", "norms", norm("model.norm", hidden, bias=architecture.norm_bias))
    if not architecture.tied_embeddings:
        yield ParameterBlock("", "head", linear("lm_head", architecture.vocabulary, hidden, "head"))
    mixing = tuple(_output_mix(architecture))
    if mixing:
        yield ParameterBlock("", "residual mix", mixing)


def _output_mix(architecture: Architecture) -> Iterator[Parameter]:
    hidden = architecture.hidden
    streams = max((layer.hyper_connections for layer in architecture.layers), default=1)
    if architecture.attn_res_block:
        yield from norm("model.output_attn_res_norm", hidden, "residual_mix")
        yield Parameter("model.output_attn_res_proj.weight", (1, hidden), "residual_mix")
    if streams > 1:
        yield Parameter("hc_head_fn", (streams, streams * hidden), "residual_mix", dtype="fp32")
        yield Parameter("hc_head_base", (streams,), "residual_mix", dtype="fp32")
        yield Parameter("hc_head_scale", (1,), "residual_mix", dtype="fp32")

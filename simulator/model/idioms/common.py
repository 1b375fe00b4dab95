"""What every decoder's file says: layers, widths, types, lists of one entry a layer; text beside vision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, Layer, Mixer, VisionTower
from simulator.model.fields import MOST_LAYERS, Fields

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def layer_count(fields: Fields) -> int:
    """num_hidden_layers."""
    return fields.size("num_hidden_layers", limit=MOST_LAYERS)


def dtype(fields: Fields) -> str:
    """The type in which the weights are meant to be held; bf16 where the file does not say."""
    fields.ignore("dtype", "torch_dtype")
    name = fields.text(fields.first("dtype", "torch_dtype"), "bfloat16", tuple(_DTYPES))
    return _DTYPES[name]


def note_quantisation(fields: Fields) -> None:
    """Say where the checkpoint is quantised: sizes here are those of bf16."""
    quantisation = fields.part("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "quantised")
        quantisation.ignore_rest()
        fields.approximate(f"The checkpoint's weights are quantised ({method}); sizes are given in bf16.")


def positions(fields: Fields) -> int:
    """max_position_embeddings, or 0 where the file does not say."""
    return fields.count(fields.first("max_position_embeddings", "model_max_length"), 0)


def router_dtype(fields: Fields) -> str:
    """moe_router_dtype, bf16 where the file does not say."""
    return _DTYPES[fields.text("moe_router_dtype", "bfloat16", tuple(_DTYPES))]


def check_layer_list(fields: Fields, name: str, kinds: list[str], count: int, allowed: tuple[str, ...]) -> None:
    """Note where the list *name* has not one of the *allowed* kinds for each of *count* layers, and mend it."""
    if fields.sound and len(kinds) != count:
        fields.problem(name, f"found {len(kinds)} entries for {count} layers")
    strange = sorted(set(kinds) - set(allowed))
    if fields.sound and strange:
        fields.problem(name, f"found {strange[0][:40]!r}, expected each to be one of {', '.join(allowed)}")
    kinds[:] = (kinds + [allowed[0]] * count)[:count]


def layer_list(fields: Fields, name: str, by_rule: list[str], allowed: tuple[str, ...]) -> list[str]:
    """The list *name* with one of the *allowed* kinds for each layer; *by_rule* where the file has no such list."""
    kinds = fields.texts(name, by_rule)
    check_layer_list(fields, name, kinds, len(by_rule), allowed)
    return kinds


def text_part(fields: Fields) -> Fields:
    """The text model's fields below text_config; the root's own where that is no object, which is then a problem."""
    return fields.part("text_config", required=True) or fields


def decoder(fields: Fields, parts: Sequence[tuple[Mixer | None, FeedForward | None]]) -> Architecture:
    """The architecture whose layers are *parts*, with the fields that every decoder has."""
    note_quantisation(fields)
    return Architecture(
        model_type=fields.text("model_type"),
        hidden=fields.size("hidden_size"),
        vocabulary=fields.size("vocab_size"),
        layers=tuple(Layer(index, mixer, feed_forward) for index, (mixer, feed_forward) in enumerate(parts)),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        max_positions=positions(fields),
        dtype=dtype(fields),
    )


def beside_vision(fields: Fields, text: Architecture, vision: VisionTower | None) -> Architecture:
    """The model at the root whose text part is *text*, with its *vision* tower and what the root says of both."""
    note_quantisation(fields)
    fields.ignore("dtype", "torch_dtype")
    return replace(
        text,
        model_type=fields.text("model_type"),
        tied_embeddings=fields.flag("tie_word_embeddings", text.tied_embeddings),
        vision=vision,
    )

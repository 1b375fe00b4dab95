"""Census: how many weights a model has, how many a token uses, and what its past costs to keep.

Totals count the text model and its vision tower, not the multi-token-prediction modules: so do the published figures.
Active parameters are those of the text model that one token meets, without input embedding and positions, which are
look-ups: top-k of the routed experts, shared experts, router, mixers, norms and the head (tied or not).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.model.cache import BF16_BYTES, Cache
from simulator.model.parameter import Parameter, ParameterBlock
from simulator.model.parameters import mixer_cache, parameter_blocks

_OUTSIDE_THE_TEXT = ("vision tower", "projector")
_LOOKED_UP = "positions"
_APART = "mtp"
_NAMED_BY_ROLE = {
    "indexer": "indexer",
    "router": "router",
    "latent": "latent projections",
    "shared_expert": "shared experts",
    "routed_expert": "routed experts",
}
"""Parameters that make a row of their own, whatever block they stand in."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of a model's weights."""

    name: str
    parameters: int
    """In the whole model."""
    layers: int
    """Layers that have some; 0 for what stands outside the layers."""
    counted: bool = True
    """False where no total counts them (mtp)."""


@dataclass(frozen=True, slots=True)
class Census:
    """The counts of one model; see the module's text for what they include."""

    total_parameters: int
    active_parameters: int
    bytes_bf16: int
    rows: tuple[Row, ...]
    cache: Cache
    """Sum over the layers, in bytes of one sequence."""

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values that each further token of a sequence adds, in bf16."""
        return self.cache.kv_bytes_per_token

    @property
    def index_bytes_per_token(self) -> float:
        """Indexer keys that each further token of a sequence adds."""
        return self.cache.index_bytes_per_token

    @property
    def state_bytes_per_sequence(self) -> float:
        """Recurrent states, convolution states and full windows of one sequence, whatever its length."""
        return self.cache.bytes_per_sequence


def census(architecture: Architecture) -> Census:
    """Count *architecture*."""
    blocks = list(parameter_blocks(architecture))
    total = sum(block.elements for block in blocks if block.part != _APART)
    mixers = [layer.mixer for layer in architecture.layers if layer.mixer is not None]
    return Census(
        total_parameters=total,
        active_parameters=sum(_active(architecture, block) for block in blocks),
        bytes_bf16=total * BF16_BYTES,
        rows=tuple(_rows(blocks)),
        cache=sum((mixer_cache(mixer) for mixer in mixers), Cache()),
    )


def _active(architecture: Architecture, block: ParameterBlock) -> int:
    """How many of the block's parameters one token uses."""
    if block.part in (*_OUTSIDE_THE_TEXT, _LOOKED_UP, _APART):
        return 0
    if block.part == "embedding":
        return block.elements if architecture.tied_embeddings else 0
    routed = sum(parameter.elements for parameter in block.parameters if parameter.role == "routed_expert")
    if block.layer is None or not routed:
        return block.elements
    mixture = architecture.layers[block.layer].feed_forward
    assert isinstance(mixture, MixtureOfExperts)
    return block.elements - routed + routed * min(mixture.top_k, mixture.experts) // mixture.experts


def _rows(blocks: list[ParameterBlock]) -> Iterator[Row]:
    """One row a kind of parameter, in order of first appearance."""
    counts: dict[str, int] = {}
    layers: dict[str, set[int]] = {}
    for block in blocks:
        for parameter in block.parameters:
            name = _row_name(block, parameter)
            counts[name] = counts.get(name, 0) + parameter.elements
            layers.setdefault(name, set()).update(() if block.layer is None else (block.layer,))
    for name, count in counts.items():
        yield Row(name, count, len(layers[name]), counted=name != _APART)


def _row_name(block: ParameterBlock, parameter: Parameter) -> str:
    return block.part if block.layer is None else _NAMED_BY_ROLE.get(parameter.role, block.part)

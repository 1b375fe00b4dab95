"""Where the weights and caches of a stage's ranks lie: on the card, in host memory, on drives.

Layers whose weights come in for every iteration have as many buffers on the card as come ahead and one for the layer
that is computed, each as large as the largest of them; caches that come in have as many. Experts that were chosen come
into room for as many as the largest iteration chooses, out of host memory that has all of them; cores compute with
those that the card does not hold. Drives are read into pinned buffers of two layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.model.architecture import MixtureOfExperts
from simulator.model.serving.held import CacheNeed, cache_need, held_layer, weight_bytes
from simulator.program.host_shards import READ_BUFFERS
from simulator.program.serving.below import cold, keeps
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.expert_rows import expert_rows

_BUFFERS = "buffers of layers"


@dataclass(slots=True)
class Placed:
    """What one rank of a stage holds of its layers, by tier."""

    card: dict[str, float] = field(default_factory=dict)
    """Bytes of weights by kind."""
    host: dict[str, float] = field(default_factory=dict)
    """The same of its part of host memory."""
    drives_bytes: float = 0.0
    card_cache: CacheNeed = field(default_factory=CacheNeed)
    """Of one sequence."""
    host_cache: CacheNeed = field(default_factory=CacheNeed)


def placed(deployment: Deployment, stage: int) -> Placed:
    """Weights and caches of the layers of *stage*."""
    found, offload, mesh = Placed(), deployment.offload, deployment.mesh
    streamed, away, longest = 0.0, CacheNeed(), deployment.longest_tokens
    with_cache = [layer.index for layer in deployment.architecture.layers if keeps(deployment, layer)]
    for layer in deployment.layers_of(stage):
        held = held_layer(layer, mesh.tp, mesh.etp)
        sizes = weight_bytes(deployment.architecture, held, deployment.formats, deployment.slots)
        if offload.experts and isinstance(layer.feed_forward, MixtureOfExperts):
            kept = round(offload.on_card * deployment.slots) / deployment.slots
            routed = sizes.pop("experts")
            _add(found.host, "experts", routed * (1.0 if offload.experts == "fetched" else 1.0 - kept))
            _add(found.card, "experts", routed * kept)
        if offload.streams(layer.index):
            streamed = max(streamed, sum(sizes.values()))
            _below(found, deployment, sum(sizes.values()))
        else:
            for kind, size in sizes.items():
                _add(found.card, kind, size)
        if held.mixer is None:
            continue
        need = cache_need(held.mixer, deployment.formats.cache)
        if layer.index in with_cache and offload.caches_away(with_cache.index(layer.index)):
            found.host_cache = found.host_cache + need
            away = max(away, need, key=lambda one: one.bytes_of(longest))
        else:
            found.card_cache = found.card_cache + need
    for _ in range(offload.buffers):
        found.card_cache = found.card_cache + away
    _add(found.card, _BUFFERS, streamed * offload.buffers + _chosen_bytes(deployment, stage))
    if offload.reads is not None and not offload.reads.direct:
        _add(found.host, _BUFFERS, streamed * READ_BUFFERS)
    return found


def _add(sizes: dict[str, float], kind: str, size: float) -> None:
    if size:
        sizes[kind] = sizes.get(kind, 0.0) + size


def _below(found: Placed, deployment: Deployment, size: float) -> None:
    """Weights of a layer that is not on the card."""
    if deployment.offload.reads is None:
        _add(found.host, "weights", size)
    else:
        found.drives_bytes += size


def _chosen_bytes(deployment: Deployment, stage: int) -> float:
    """Room on the card for experts that come when they are chosen: those of one layer in the largest iteration."""
    if deployment.offload.experts != "fetched" or deployment.popularity is None:
        return 0.0
    numbers = {layer.index: at for at, layer in enumerate(deployment.architecture.moe_layers())}
    most = 0.0
    for layer in deployment.layers_of(stage):
        if not isinstance(layer.feed_forward, MixtureOfExperts):
            continue
        others = cold(deployment.popularity[numbers[layer.index]], deployment.offload.on_card)
        rows = expert_rows(others[None], float(deployment.most_tokens), layer.feed_forward.top_k)
        held = held_layer(layer, deployment.mesh.tp, deployment.mesh.etp)
        one = weight_bytes(deployment.architecture, held, deployment.formats, 1)["experts"]
        most = max(most, float(rows.touched.sum()) * one)
    return most

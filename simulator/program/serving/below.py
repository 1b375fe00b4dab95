"""What comes to the card for one layer of one iteration, and goes back: bytes, and how long they are under way.

A layer's weights come tensor by tensor, its cache in one copy of keys and values of all sequences; new ones go back
behind the layer. Chosen experts that the card does not hold come when the router has chosen: so many as an expectation
over what tokens choose (`expert_rows`), and those that the card holds are the most popular ones. Host cores instead get
the tokens' hidden states, read the weights of the experts that are chosen, and send sums back:

    seconds = max(weights read / memory, weights read / (threads * a core's rate), FLOPs / rate of all cores)

Cores of all cards' processes share the node's. Weights are spread over the node's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.cache import BF16_BYTES
from simulator.model.parameters import layer_parameters
from simulator.model.serving.held import cache_need, held_layer, weight_bytes
from simulator.model.serving.iteration import Iteration
from simulator.program.drives import Drives
from simulator.program.host_memory import HostMemory
from simulator.program.network import Transfer
from simulator.program.offload import OnDrives
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.expert_rows import expert_rows
from simulator.program.serving.offload import ServingOffload
from simulator.routing.table import FloatArray

_MATRICES = 2
"""Of an expert, as engines keep them: gate and up in one, and down (vLLM `w13_weight`, `w2_weight`)."""


@dataclass(frozen=True, slots=True)
class Below:
    """Of one layer in one iteration; None where there is nothing."""

    read: Transfer | None = None
    """Weights, from drives: to host memory, or with *direct* reads to the card."""
    weights: Transfer | None = None
    """Weights, from host memory."""
    cache: Transfer | None = None
    written: Transfer | None = None
    """New keys and values, on their way out."""
    chosen: Transfer | None = None
    """Weights of experts that were chosen and are not on the card."""
    cores: tuple[Transfer, Transfer, Transfer] | None = None
    """Hidden states out, the cores' work on them, sums in."""


NOTHING_BELOW = Below()


class BelowTheCard:
    """Prices what comes up, for layers of *deployment*."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._offload: ServingOffload = deployment.offload
        self._host = HostMemory(deployment.cluster, 1)
        reads = deployment.offload.reads
        self._direct = reads is not None and reads.direct
        self._drives = None
        if reads is not None:
            way = OnDrives(1.0, 1, False, False, reads.direct, reads.block_bytes, reads.queue_depth)
            self._drives = Drives(deployment.cluster, self._host, way)
        layers = deployment.architecture.layers
        cached = [layer.index for layer in layers if keeps(deployment, layer)]
        self._caches = {index for at, index in enumerate(cached) if self._offload.caches_away(at)}
        self._numbers = {layer.index: at for at, layer in enumerate(deployment.architecture.moe_layers())}

    def of(self, layer: Layer, iteration: Iteration) -> Below:
        """What comes for *layer* in *iteration*."""
        found = NOTHING_BELOW
        if self._offload.streams(layer.index):
            found = self._streamed(layer)
        if layer.index in self._caches:
            found = self._with_cache(found, layer, iteration)
        if self._offload.experts is not None and isinstance(layer.feed_forward, MixtureOfExperts):
            found = self._with_experts(found, layer, layer.feed_forward, iteration)
        return found

    def _streamed(self, layer: Layer) -> Below:
        held, deployment = held_layer(layer, self._deployment.mesh.tp, self._deployment.mesh.etp), self._deployment
        slots = 0 if self._offload.experts else deployment.slots
        size = sum(weight_bytes(deployment.architecture, held, deployment.formats, slots).values())
        moved = [p for p in layer_parameters(deployment.architecture, held) if slots or p.role != "routed_expert"]
        copied = self._host.into(size, copies=len(moved))
        if self._drives is None:
            return Below(weights=copied)
        if self._direct:
            return Below(read=self._drives.read_to_card(size))
        return Below(read=self._drives.read(size), weights=copied)

    def _with_cache(self, found: Below, layer: Layer, iteration: Iteration) -> Below:
        held = held_layer(layer, self._deployment.mesh.tp, self._deployment.mesh.etp)
        assert held.mixer is not None
        need = cache_need(held.mixer, self._deployment.formats.cache)
        known = [chunk.cached_tokens for chunk in iteration.prefill]
        known += [context - 1 for context in iteration.decode_contexts]
        size = sum(need.bytes_of(tokens) for tokens in known)
        new = need.bytes_of(1) * iteration.tokens
        return replace(found, cache=self._host.into(size) if size else None, written=self._host.out(new))

    def _with_experts(self, found: Below, layer: Layer, part: MixtureOfExperts, iteration: Iteration) -> Below:
        deployment = self._deployment
        assert deployment.popularity is not None
        away = cold(deployment.popularity[self._numbers[layer.index]], self._offload.on_card)
        rows = expert_rows(away[None], float(iteration.tokens), part.top_k)
        chosen, held = float(rows.touched.sum()), held_layer(layer, deployment.mesh.tp, deployment.mesh.etp)
        one = weight_bytes(deployment.architecture, held, deployment.formats, 1)["experts"]
        if self._offload.experts == "fetched":
            copies = ceil(chosen * _MATRICES)
            return replace(found, chosen=self._host.into(chosen * one, copies=copies) if chosen else None)
        states = float(iteration.tokens * (part.latent or deployment.architecture.hidden) * BF16_BYTES)
        flops = float(rows.rows.sum()) * 2.0 * _weights(deployment, held)
        work = self._host.multiply(
            chosen * one, flops, self._offload.threads, formats=(deployment.formats.experts.arithmetic, "bf16")
        )
        return replace(found, cores=(self._host.out(states), work, self._host.into(states)))


def keeps(deployment: Deployment, layer: Layer) -> bool:
    """Whether *layer* keeps something of each token."""
    if layer.mixer is None:
        return False
    need = cache_need(layer.mixer, deployment.formats.cache)
    return bool(need.token_bytes or need.windows)


def hot(popularity: FloatArray, share: float) -> FloatArray:
    """The most popular *share* of a layer's [ranks, slots] on each rank, whole experts."""
    count = round(share * popularity.shape[1])
    return np.asarray(-np.sort(-popularity, axis=1)[:, :count])


def cold(popularity: FloatArray, share: float) -> FloatArray:
    """The others."""
    count = round(share * popularity.shape[1])
    return np.asarray(-np.sort(-popularity, axis=1)[:, count:])


def _weights(deployment: Deployment, held: Layer) -> float:
    """Elements of one routed expert's weights on a rank."""
    routed = [p for p in layer_parameters(deployment.architecture, held) if p.role == "routed_expert"]
    return float(sum(p.elements // p.shape[0] for p in routed))


def on_card(deployment: Deployment) -> Deployment:
    """*deployment* with the experts that its card holds alone: what it computes itself."""
    if deployment.offload.experts != "cores" or deployment.popularity is None:
        return deployment
    layers = [hot(layer, deployment.offload.on_card) for layer in deployment.popularity]
    return replace(deployment, popularity=np.stack(layers))

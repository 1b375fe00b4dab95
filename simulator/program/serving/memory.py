"""What a rank of a deployment holds beside the cache, and how much cache a sequence needs.

Activations are those of the largest operator of a layer in the largest iteration, beside the residual stream: nothing
is saved for later. Engines find out by a dry run with as many tokens (vLLM `profile_run`). Context and communicators
are told apart from what the allocator hands out, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from simulator.model.architecture import MixtureOfExperts
from simulator.model.cache import BF16_BYTES, FP32_BYTES
from simulator.model.operator import Operator
from simulator.model.parameters import embedding_parameters, head_parameters
from simulator.model.serving.held import CacheNeed
from simulator.model.serving.iteration import Chunk, Iteration
from simulator.model.serving.layers import Setting, served_layer
from simulator.model.split import share_model
from simulator.program.exchanges import exchanges
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.expert_rows import expert_rows
from simulator.program.serving.placed import placed


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Of one rank of a pipeline stage."""

    weights: dict[str, float]
    """Bytes by kind: "weights", "experts", "absorbed weights", "embedding and head", "buffers of layers"."""
    activation_bytes: float
    """Temporaries of the largest iteration, logits included."""
    buffer_bytes: float
    """Kept for exchanges of rows."""
    workspace_bytes: float
    """Of the matmul library."""
    cache: CacheNeed
    """Of one sequence."""
    communicators: int
    """Sets of ranks that it communicates in."""
    host: dict[str, float] = field(default_factory=dict)
    """Weights and buffers in host memory, by kind."""
    drives_bytes: float = 0.0
    """Weights on drives."""
    host_cache: CacheNeed = field(default_factory=CacheNeed)
    """Of one sequence, what of its cache is in host memory; *cache* has room on the card for its way through it."""

    @property
    def weight_bytes(self) -> float:
        """All weights."""
        return sum(self.weights.values())


def rank_memory(deployment: Deployment, stage: int) -> RankMemory:
    """What a rank of *stage* holds."""
    architecture, mesh = share_model(deployment.architecture, deployment.mesh.tp), deployment.mesh
    where = placed(deployment, stage)
    found = dict(where.card)
    ends = (*embedding_parameters(architecture),) if stage == 0 else ()
    ends += (*head_parameters(architecture),) if stage == mesh.pp - 1 else ()
    found["embedding and head"] = float(BF16_BYTES * sum(parameter.elements for parameter in ends))
    handles = deployment.cluster.accelerator.matmul_workspace_bytes
    axes = (mesh.tp > 1, deployment.exchanges, mesh.pp > 1)
    return RankMemory(
        found,
        _activations(deployment, stage),
        _buffers(deployment),
        handles,
        where.card_cache,
        sum(axes),
        where.host,
        where.drives_bytes,
        where.host_cache,
    )


def _activations(deployment: Deployment, stage: int) -> float:
    """Of an iteration of one prompt as long as iterations get."""
    model, mesh, tokens = deployment.architecture, deployment.mesh, deployment.most_tokens
    native = frozenset(deployment.cluster.accelerator.sheet.dense_flops_per_s)
    setting = Setting(mesh.tp, mesh.etp, deployment.exchanges, deployment.formats, native)
    iteration = Iteration((Chunk(tokens),))
    most, stream = 0.0, float(BF16_BYTES * tokens * model.hidden)
    for layer in {(layer.mixer, layer.feed_forward): layer for layer in deployment.layers_of(stage)}.values():
        rows = _hottest_rows(deployment, layer.feed_forward) if isinstance(layer.feed_forward, MixtureOfExperts) else 0
        before = stream
        for served in served_layer(model, layer, iteration, setting):
            made = _made(served.operator, rows)
            most = max(most, before + made)
            before = made
    # Every rank gathers all columns (`head.last_operators`).
    columns = ceil(model.vocabulary / mesh.tp) * mesh.tp
    logits = float((BF16_BYTES + FP32_BYTES) * columns * min(tokens, deployment.most_sequences))
    return 2 * stream + max(most, logits if stage == mesh.pp - 1 else 0.0)


def _made(operator: Operator, rows: float) -> float:
    size = operator.output_bytes + operator.workspace_bytes
    return size * rows if operator.rows == "routed" else size


def _hottest_rows(deployment: Deployment, part: MixtureOfExperts) -> float:
    """Rows of the rank that has most, in any layer, when all ranks have the largest iteration."""
    if deployment.popularity is None:
        return 0.0
    tokens = deployment.most_tokens * deployment.expert_ranks / deployment.mesh.tp
    return float(np.max(expert_rows(deployment.popularity, tokens, part.top_k).of_ranks))


def _buffers(deployment: Deployment) -> float:
    """Of the two ways of rows to experts, for as many tokens as decode at once."""
    part = next((layer.feed_forward for layer in deployment.architecture.moe_layers()), None)
    if not deployment.exchanges or not isinstance(part, MixtureOfExperts):
        return 0.0
    row = float(BF16_BYTES * (part.latent or deployment.architecture.hidden))
    experts = deployment.slots * deployment.mesh.ep
    ways = {deployment.prefill_exchange, deployment.decode_exchange}
    sent = -(-deployment.most_sequences // deployment.mesh.tp)
    return sum(exchanges()[way].buffer_bytes(experts, sent, row) for way in sorted(ways))

"""A deployment: a model on a cluster as an inference engine runs it, before requests come.

Ranks of `mesh.dp_shard` each serve sequences of their own (attention data parallelism), `tp` of them share a layer's
heads and widths, `pp` the layers. Experts are spread over `ep` of the ranks of a stage, and each expert's width over
`etp` of them: ep x etp ranks hold all experts of a layer, a multiple of tp. Where they are just tp, they have the same
tokens and rows travel nowhere. `dp_replicate` are whole copies of all that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from simulator.hardware.cluster import Cluster
from simulator.model.architecture import Architecture, Layer, MixtureOfExperts
from simulator.model.serving.formats import Formats
from simulator.parallel.folding import Folding, fold
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import members_within
from simulator.program.pipeline import Pipeline
from simulator.program.serving.offload import ALL_ON_CARD, ServingOffload
from simulator.routing.coverage import Choice
from simulator.routing.placement import Placement
from simulator.routing.table import FloatArray, RoutingTable


@dataclass(frozen=True, eq=False)
class Deployment:
    """What serves."""

    architecture: Architecture
    cluster: Cluster
    mesh: Mesh
    formats: Formats = field(default_factory=Formats)
    most_tokens: int = 8192
    """Of one iteration on one attention-data-parallel rank: sizes activations."""
    most_sequences: int = 256
    """That decode at once on one attention-data-parallel rank: sizes logits and buffers."""
    longest_tokens: int = 2**17
    """Of the longest cache of a sequence: says which layer's cache needs the largest buffer."""
    cuda_graphs: bool = True
    """Whether iterations of decoding sequences alone are captured; those with prompts are launched by the host."""
    prefill_code: Literal["compiled", "fused"] = "compiled"
    """What the host launches those with."""
    prefill_exchange: str = "hierarchical"
    """How rows find their experts where prompts take part: a file of `exchanges/`."""
    decode_exchange: str = "low_latency"
    """The same where all sequences decode."""
    two_batch_overlap: bool = False
    """Whether an iteration goes through the layers in two halves, each computed beside the other's exchanges."""
    popularity: FloatArray | None = None
    """Share of a layer's rows that each slot for experts takes, [MoE layers, ep, slots of a rank]; None without
    experts."""
    offload: ServingOffload = ALL_ON_CARD
    in_order: bool = True
    """Whether experts lie on ranks in their order, each once, so that groups of them lie on neighbouring ranks."""

    def __post_init__(self) -> None:
        """Refuse experts that are split among ranks which bring tokens of their own to them."""
        if self.exchanges and self.mesh.etp > 1:
            raise ValueError(
                f"etp({self.mesh.etp}) with ep({self.mesh.ep}) * etp > tp({self.mesh.tp}): rows that travel to experts "
                f"which ranks split by width are not simulated; nearest: ep {self.expert_ranks} with etp 1"
            )

    @property
    def pipeline(self) -> Pipeline:
        """How layers lie on the stages."""
        return Pipeline(self.mesh.pp)

    def layers_of(self, stage: int) -> tuple[Layer, ...]:
        """The layers of a pipeline stage."""
        edges = self.pipeline.edges(len(self.architecture.layers))
        return self.architecture.layers[edges[stage] : edges[stage + 1]]

    @property
    def slots(self) -> int:
        """Experts that a rank holds of each layer, copies included."""
        return 0 if self.popularity is None else int(self.popularity.shape[2])

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold all experts of a layer together."""
        return self.mesh.ep * self.mesh.etp

    @property
    def exchanges(self) -> bool:
        """Whether rows travel to the ranks of their experts, because these have tokens of their own."""
        return self.popularity is not None and self.expert_ranks > self.mesh.tp

    def choice(self, part: MixtureOfExperts) -> Choice:
        """What a token chooses of *part*."""
        return Choice(part.top_k, part.groups, part.best_groups) if self.in_order else Choice(part.top_k)

    @cached_property
    def folding(self) -> Folding:
        """Behaviours of a stage's ranks: told apart by their experts and how their groups lie around them."""
        sizes, features = [level.size for level in self.cluster.levels], [self.mesh.expert_rank()]
        for stage in range(self.mesh.pp):
            for group in self.mesh.groups().values():
                features.extend(members_within(group, sizes, stage * self.mesh.stage_ranks))
        return fold(np.stack(features, axis=1), self.mesh.groups())


def slot_popularity(placement: Placement, table: RoutingTable) -> FloatArray:
    """Share of a layer's rows that each slot of *placement* takes, [layers, ranks, slots of a rank]: copies of an
    expert share its rows evenly.
    """
    share = table.popularity / placement.replicas
    return np.asarray(np.take_along_axis(share[:, None, :], placement.slots, axis=2))

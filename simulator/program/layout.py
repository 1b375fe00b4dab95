"""The layout of a job's weights: which are trained, how FSDP2 groups them, and what every rank keeps for good."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.engine.task import Allocation
from simulator.model.architecture import Architecture, Layer
from simulator.model.parameter import Parameter
from simulator.model.parameters import embedding_parameters, head_parameters, layer_parameters, vision_parameters
from simulator.parallel.mesh import Mesh
from simulator.parallel.sharding import Adapter, ShardGroup, TrainedState, local_elements, shard_group
from simulator.program.fsdp import Unit


@dataclass(frozen=True, slots=True)
class Trained:
    """What is trained: everything, or adapters of *lora_rank* on the linear weights of some roles."""

    lora_rank: int | None = None
    lora_roles: frozenset[str] = frozenset()

    def adapters(self, parameters: Iterable[Parameter]) -> dict[str, Adapter]:
        """The adapters among *parameters*, by the weight's name."""
        if self.lora_rank is None:
            return {}
        return {p.name: Adapter(p, self.lora_rank) for p in parameters if self._carries(p)}

    def split(self, parameters: Iterable[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
        """(frozen, trained) tensors that *parameters* and their adapters come to."""
        base = list(parameters)
        if self.lora_rank is None:
            return [], base
        return base, [factor for adapter in self.adapters(base).values() for factor in adapter.factors]

    def trained_elements(self, parameter: Parameter, ep: int) -> int:
        """Elements that are trained for one weight on an ep rank: its own, its adapter's, or none."""
        return sum(local_elements(tensor, ep) for tensor in self.split([parameter])[1])

    def _carries(self, parameter: Parameter) -> bool:
        matrix = parameter.linear or (parameter.role == "routed_expert" and len(parameter.shape) == 3)
        return matrix and parameter.role in self.lora_roles


@dataclass(frozen=True, slots=True)
class Layout:
    """The FSDP2 units of a job."""

    layers: tuple[Unit, ...]
    root: Unit
    """Embedding, final norm and head: gathered once a micro-batch and kept until its end."""
    idle: tuple[ShardGroup, ...]
    """Groups that a text batch never gathers: the vision tower."""
    frozen_bytes: int
    """Bytes of a frozen element as stored."""
    state: TrainedState

    @property
    def groups(self) -> tuple[ShardGroup, ...]:
        """All groups."""
        return (*(g for unit in (*self.layers, self.root) for g in unit.groups), *self.idle)

    @property
    def trained_shard(self) -> int:
        """Trained elements that one rank owns."""
        return sum(group.trained_shard for group in self.groups)

    def resident(self) -> list[Allocation]:
        """What one rank holds between steps."""
        total: dict[str, float] = {}
        for group in self.groups:
            for kind, size in group.resident_bytes(self.frozen_bytes, self.state).items():
                total[kind] = total.get(kind, 0.0) + size
        return [Allocation(f"resident.{kind}", kind, size) for kind, size in total.items() if size]


def lay_out(architecture: Architecture, mesh: Mesh, trained: Trained, state: TrainedState, frozen_bytes: int) -> Layout:
    """Group the weights of *architecture* as `fully_shard` on each layer, its experts and the root does."""

    def group(name: str, parameters: Iterable[Parameter]) -> ShardGroup:
        frozen, learnt = trained.split(parameters)
        return shard_group(name, "dp_shard", mesh.dp_shard, frozen, learnt)

    def layer_unit(layer: Layer) -> Unit:
        weights = layer_parameters(architecture, layer)
        name = f"layer {layer.index}"
        groups = [group(name, [p for p in weights if p.role != "routed_expert"])]
        experts = [p for p in weights if p.role == "routed_expert"]
        if experts:
            frozen, learnt = trained.split(experts)
            groups.append(shard_group(f"{name} experts", "efsdp", mesh.efsdp, frozen, learnt, ep=mesh.ep))
        return Unit(name, tuple(groups), made_by(weights, name))

    def made_by(weights: Iterable[Parameter], name: str) -> dict[str, tuple[str, int]]:
        return {
            p.name: (f"{name} experts" if p.role == "routed_expert" else name, trained.trained_elements(p, mesh.ep))
            for p in weights
        }

    root = [*embedding_parameters(architecture), *head_parameters(architecture)]
    vision = vision_parameters(architecture)
    return Layout(
        layers=tuple(layer_unit(layer) for layer in architecture.layers),
        root=Unit("root", (group("root", root),), made_by(root, "root")),
        idle=(group("vision", vision),) if vision else (),
        frozen_bytes=frozen_bytes,
        state=state,
    )

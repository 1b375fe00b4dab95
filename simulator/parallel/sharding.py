"""What each rank holds: FSDP2 groups of parameters, their shards, and the state that training adds.

FSDP2 shards every parameter by itself on dim 0, padded to a multiple of the ranks that share it; a routed expert's
tensor is first split among ep ranks by whole experts, and sharded on dim 1 when fewer experts than ranks are left
(PyTorch 2.14 `_fsdp_param.py`, torchtitan's rule for experts).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, prod

from simulator.model.parameter import Parameter


@dataclass(frozen=True, slots=True)
class TrainedState:
    """Bytes per trained parameter of each kind of state, on the rank that owns it."""

    parameter: int
    gradient: int
    optimizer: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter on one linear weight of shape (out, in): A is (rank, in) and B is (out, rank)."""

    parameter: Parameter
    rank: int

    @property
    def factors(self) -> tuple[Parameter, Parameter]:
        """The two factors as parameters; an expert tensor gets a pair for each expert."""
        *experts, out, inner = self.parameter.shape
        name, role = self.parameter.name, self.parameter.role
        return (
            Parameter(f"{name}.lora_A", (*experts, self.rank, inner), role),
            Parameter(f"{name}.lora_B", (*experts, out, self.rank), role),
        )


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Parameters that one `fully_shard` call gathers together over *ranks* ranks of the *axis* groups."""

    name: str
    axis: str
    ranks: int
    frozen_elements: int
    """Unsharded elements on this rank (an ep rank counts its own experts)."""
    trained_elements: int
    frozen_shard: int
    """Elements of the padded shard that one rank keeps."""
    trained_shard: int
    parameters: int
    """How many tensors there are."""

    @property
    def elements(self) -> int:
        """Unsharded elements, without padding."""
        return self.frozen_elements + self.trained_elements

    @property
    def gathered_elements(self) -> int:
        """Elements of the all-gather's output: every rank's padded shard."""
        return (self.frozen_shard + self.trained_shard) * self.ranks

    def resident_bytes(self, frozen_bytes: int, state: TrainedState) -> dict[str, float]:
        """What one rank keeps from step to step, by kind. Gradients live within a step only."""
        return {
            "parameters": float(self.frozen_shard * frozen_bytes + self.trained_shard * state.parameter),
            "optimizer": float(self.trained_shard * state.optimizer),
        }


def shard_group(
    name: str, axis: str, ranks: int, frozen: Iterable[Parameter], trained: Iterable[Parameter], *, ep: int = 1
) -> ShardGroup:
    """Shard *frozen* and *trained* parameters over *ranks* ranks, routed experts among *ep* ranks before that."""
    frozen_shapes = [_local_shape(p, ep) for p in frozen]
    trained_shapes = [_local_shape(p, ep) for p in trained]
    return ShardGroup(
        name=name,
        axis=axis,
        ranks=ranks,
        frozen_elements=sum(map(prod, frozen_shapes)),
        trained_elements=sum(map(prod, trained_shapes)),
        frozen_shard=sum(_shard_elements(shape, ranks) for shape in frozen_shapes),
        trained_shard=sum(_shard_elements(shape, ranks) for shape in trained_shapes),
        parameters=len(frozen_shapes) + len(trained_shapes),
    )


def _local_shape(parameter: Parameter, ep: int) -> tuple[int, ...]:
    """The part of a tensor that an ep rank holds: its own experts of an expert tensor, all of any other."""
    if parameter.role != "routed_expert":
        return parameter.shape
    experts, *rest = parameter.shape
    if experts % ep:
        raise ValueError(f"{experts} experts do not divide among ep {ep}")
    return (experts // ep, *rest)


def _shard_elements(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of one rank's padded shard: dim 0 cut in *ranks* parts, dim 1 where dim 0 counts too few experts."""
    if len(shape) == 3 and shape[0] < ranks:
        return shape[0] * ceil(shape[1] / ranks) * shape[2]
    return ceil(shape[0] / ranks) * prod(shape[1:])

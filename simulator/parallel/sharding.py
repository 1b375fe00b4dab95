"""What each rank holds: FSDP2 groups of parameters, their shards, and the state that training adds.

FSDP2 shards every parameter by itself on dim 0, padded to a multiple of the ranks that share it; a routed expert's
tensor is first split among ep ranks by whole experts, and sharded on dim 1 when fewer experts than ranks are left
(PyTorch 2.14 `_fsdp_param.py`, torchtitan's rule for experts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, prod

from simulator.model.parameter import Parameter


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter on one linear weight: A is (rank, in) and B is (out, rank).

    A linear layer's weight is (out, in); an expert tensor is (experts, in, out) and gets a pair for each expert.
    """

    parameter: Parameter
    rank: int

    @property
    def widths(self) -> tuple[int, int]:
        """Width of the input and of the output of the layer that it stands beside."""
        first, second = self.parameter.shape[-2:]
        return (first, second) if self.parameter.role == "routed_expert" else (second, first)

    @property
    def factors(self) -> tuple[Parameter, Parameter]:
        """The two factors as parameters."""
        into, out = self.widths
        experts = self.parameter.shape[:-2]
        name, role = self.parameter.name, self.parameter.role
        return (
            Parameter(f"{name}.lora_A", (*experts, self.rank, into), role),
            Parameter(f"{name}.lora_B", (*experts, out, self.rank), role),
        )


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrices of one shape that lie in one tensor: those of several experts, or one."""

    rows: int
    columns: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Of all of them."""
        return self.rows * self.columns * self.count


@dataclass(frozen=True, slots=True)
class Share:
    """One tensor of a group: its elements on this rank unsharded, and those of the padded shard that is kept."""

    elements: int
    shard: int
    matrix: Matrix | None = None
    """Its hidden matrices, unsharded; None for embeddings, heads, and what has one dim."""
    width: int = 2
    """Bytes of an element as it is gathered and computed with: 2, bf16; 1, fp8."""


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
    frozen: tuple[Share, ...]
    trained: tuple[Share, ...]

    @property
    def parameters(self) -> int:
        """How many tensors there are."""
        return len(self.frozen) + len(self.trained)

    @property
    def elements(self) -> int:
        """Unsharded elements, without padding."""
        return self.frozen_elements + self.trained_elements

    @property
    def gathered_bytes(self) -> int:
        """Size of the all-gather's output: every rank's padded shard."""
        return self.ranks * sum(share.shard * share.width for share in (*self.frozen, *self.trained))

    def recast(self, stored_bytes: int) -> list[Share]:
        """The trained tensors whose shards, of *stored_bytes* an element, are cast to be gathered."""
        return [share for share in self.trained if share.width != stored_bytes]


def shard_group(
    name: str,
    axis: str,
    ranks: int,
    frozen: Iterable[Parameter],
    trained: Iterable[Parameter],
    *,
    ep: int = 1,
    width: Callable[[Parameter], int] = lambda _: 2,
) -> ShardGroup:
    """Shard *frozen* and *trained* parameters over *ranks* ranks, routed experts among *ep* ranks before that.

    *width*: bytes of an element of a parameter as it is gathered.
    """
    fixed, learnt = (
        tuple(Share(local_elements(p, ep), _shard_elements(p, ranks, ep), _matrix(p, ep), width(p)) for p in parameters)
        for parameters in (frozen, trained)
    )
    return ShardGroup(
        name=name,
        axis=axis,
        ranks=ranks,
        frozen_elements=sum(share.elements for share in fixed),
        trained_elements=sum(share.elements for share in learnt),
        frozen_shard=sum(share.shard for share in fixed),
        trained_shard=sum(share.shard for share in learnt),
        frozen=fixed,
        trained=learnt,
    )


def local_elements(parameter: Parameter, ep: int) -> int:
    """Elements of a tensor that an ep rank uses: of its own experts, or all."""
    return prod(_local_shape(parameter, ep))


def _matrix(parameter: Parameter, ep: int) -> Matrix | None:
    """The hidden matrices of a tensor: experts' one by one, and a kernel of a convolution as rows by the rest."""
    shape = _local_shape(parameter, ep)
    if parameter.role in ("embedding", "head") or len(shape) < 2:
        return None
    if parameter.role == "routed_expert":
        return Matrix(shape[1], prod(shape[2:]), shape[0]) if len(shape) > 2 else None
    return Matrix(shape[0], prod(shape[1:]))


def _local_shape(parameter: Parameter, ep: int) -> tuple[int, ...]:
    """The part of a tensor that an ep rank holds: its own experts of an expert tensor, all of any other."""
    if parameter.role != "routed_expert":
        return parameter.shape
    experts, *rest = parameter.shape
    if experts % ep:
        raise ValueError(f"{experts} experts do not divide among ep {ep}")
    return (experts // ep, *rest)


def _shard_elements(parameter: Parameter, ranks: int, ep: int) -> int:
    """Elements of one rank's padded shard: dim 0 cut in *ranks* parts, or dim 1 where experts are too few."""
    first, *rest = _local_shape(parameter, ep)
    if parameter.role == "routed_expert" and len(rest) == 2 and first < ranks:
        return first * ceil(rest[0] / ranks) * rest[1]
    return ceil(first / ranks) * prod(rest)

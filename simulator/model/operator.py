"""Operators: what one module computes on one rank's tokens, as kernels with FLOPs and bytes.

An operator knows no hardware. Its kernels carry arithmetic, memory traffic and shape; the `program` floor prices them.
FLOPs count a multiply-add as two. Bytes count each operand once (perfect reuse inside a kernel), which is a lower
bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

Execution = Literal["eager", "compiled", "fused"]
"""How operators run: framework kernels one by one, element-wise ones fused by a compiler, or a hand-fused stack."""

Rows = Literal["tokens", "routed"]
"""Whether costs are totals over the rank's tokens, or per routed row (one token sent to one expert)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch, or *launches* equal ones that share *flops* and *bytes*.

    With `rows == "routed"` of the owning operator, *flops* and *bytes* are per routed row, and *fixed_bytes* (weights
    of the experts on the rank: per expert) does not depend on rows.
    """

    kind: str
    """Which efficiency curve prices it: gemm, grouped_gemm, attention, kda, scan, elementwise, norm, softmax, topk,
    gather, scatter, conv, loss, indexer, sparse_attention, copy."""
    flops: float
    bytes: float
    shape: tuple[int, ...] = ()
    """(m, n, k) of a gemm; (n, k) of a grouped gemm, whose m is the rows of each expert; (heads, head_dim, length) of
    attention."""
    dtype: str = "bf16"
    fixed_bytes: float = 0.0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that autograd keeps from the forward to the backward pass.

    *name* says which tensor it is within the layer: two operators that keep the same one name it alike, and `keep_once`
    leaves it with the first of them.
    """

    name: str
    bytes: float
    needed_for: Literal["input_gradient", "weight_gradient"] = "input_gradient"
    """A tensor needed for a weight's gradient only is not kept when the weight is frozen and has no adapter."""
    weights: tuple[str, ...] = ()
    """With `needed_for == "weight_gradient"`: the weights that need it. It is kept when any one of them is trained."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One step of a module's forward pass, with what its backward pass runs."""

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...] = ()
    """Gradient of the inputs."""
    backward_weight: tuple[Kernel, ...] = ()
    """Gradient of the weights: run only when they are trained."""
    weights: tuple[str, ...] = ()
    """Names of the parameters used, within the layer."""
    saved: tuple[Saved, ...] = ()
    output_bytes: float = 0.0
    """Size of the result (per routed row where rows == "routed")."""
    workspace_bytes: float = 0.0
    """Temporaries alive during the forward kernels only."""
    backward_workspace_bytes: float = 0.0
    rows: Rows = "tokens"
    payload_bytes: float = 0.0
    """Bytes that one routed row puts on the wire, for the expert dispatch and combine; 0 elsewhere."""
    expert_parallel_only: bool = False
    """True for a copy that runs only where the experts are spread over several ranks."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one rank feeds to the model in one micro-batch."""

    sequence_lengths: tuple[int, ...]
    """Length in tokens of each sequence; attention never crosses two of them."""
    execution: Execution = "fused"
    activation_bytes: int = 2
    """Bytes of one activation element (bf16: 2)."""
    image_patches: tuple[int, ...] = field(default=())
    """Patches of each image for the vision tower, before merging."""

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch on this rank."""
        return sum(self.sequence_lengths)

    @property
    def causal_pairs(self) -> int:
        """Query-key pairs of causal attention, summed over the sequences: L (L + 1) / 2 each."""
        return sum(n * (n + 1) // 2 for n in self.sequence_lengths)


def keep_once(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """The *operators* with each saved tensor listed once: at the first that keeps it, for the sake of all that do."""
    operators = tuple(operators)
    needs: dict[str, Saved] = {}
    for tensor in (tensor for operator in operators for tensor in operator.saved):
        known = needs.get(tensor.name)
        needs[tensor.name] = tensor if known is None else _joined(known, tensor)
    return tuple(
        replace(operator, saved=tuple(needs.pop(t.name) for t in operator.saved if t.name in needs))
        for operator in operators
    )


def _joined(first: Saved, second: Saved) -> Saved:
    """One tensor for two readers: kept for an input's gradient if either needs that, else for both their weights."""
    if "input_gradient" in (first.needed_for, second.needed_for):
        return Saved(first.name, max(first.bytes, second.bytes))
    weights = tuple(dict.fromkeys(first.weights + second.weights))
    return Saved(first.name, max(first.bytes, second.bytes), "weight_gradient", weights)

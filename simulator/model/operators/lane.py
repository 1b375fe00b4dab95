"""Lane: the rows that an operator runs over, and the kernels whose time is their traffic.

A lane of tokens carries totals over the rank's tokens; a lane of routed rows carries the cost of one row (a token sent
to one expert), because the lowering alone knows how many of them each rank gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.model.operator import Execution, Kernel, Rows, Saved, Workload

FP32_BYTES = 4
INT64_BYTES = 8

MIXER_INPUT = "mixer_input"
"""Name of the saved tensor that a mixer reads: the normalised residual stream."""
FEED_FORWARD_INPUT = "feed_forward_input"
"""Name of the saved tensor that a feed-forward part reads."""
EXPERT_INPUT = "expert_input"
"""Name of the saved tensor that the first product of routed experts reads."""
EXPERT_HIDDEN = "expert_hidden"
"""Name of the saved tensor that the activation of routed experts reads."""


@dataclass(frozen=True, slots=True)
class Step:
    """One framework kernel of a chain: its sort, and the bytes that it moves for each element of the chain."""

    kind: str
    bytes: float
    dtype: str = "bf16"
    """Format of the operands: one bound by its address arithmetic moves fp32 at nearly twice the rate of bf16."""


@dataclass(frozen=True, slots=True)
class Lane:
    """*count* rows of activations with *element_bytes* an element, computed in one execution mode."""

    count: int
    execution: Execution
    element_bytes: int
    rows: Rows = "tokens"
    megatron: bool = False
    """Whether the hand-fused stack is Megatron-LM's."""
    kept: int | None = None
    """Rows that a rank keeps of a tensor which it gathered from others and gathers again when needed; None: all."""

    @property
    def eager(self) -> bool:
        """Whether element-wise steps run kernel by kernel."""
        return self.execution == "eager"

    @property
    def dtype(self) -> str:
        """Number format of the activations."""
        return {1: "fp8", 2: "bf16", 4: "fp32"}[self.element_bytes]

    def tensor_bytes(self, width: float) -> float:
        """Bytes of an activation *width* elements wide."""
        return self.count * width * self.element_bytes

    def kept_bytes(self, width: float) -> float:
        """Bytes that a rank keeps of such an activation."""
        return (self.count if self.kept is None else self.kept) * width * self.element_bytes

    def saved(self, name: str, width: float, element_bytes: int | None = None) -> Saved:
        """The activation *name*, kept for an input's gradient."""
        return Saved(name, self.count * width * (self.element_bytes if element_bytes is None else element_bytes))


def token_lane(workload: Workload) -> Lane:
    """The rank's tokens, inside a part that the tp ranks split."""
    return Lane(workload.tokens, workload.execution, workload.activation_bytes, megatron=workload.megatron)


def own_lane(workload: Workload) -> Lane:
    """The tokens whose residual stream the rank holds."""
    return replace(token_lane(workload), count=workload.own_tokens)


def sent_lane(workload: Workload) -> Lane:
    """The tokens that the rank sends to experts."""
    return replace(token_lane(workload), count=workload.sent_tokens)


def gathered_lane(workload: Workload) -> Lane:
    """The rank's tokens where it reads what the tp ranks gathered; it keeps its own part, or all of it."""
    return replace(token_lane(workload), kept=workload.own_tokens if workload.gathers_again else None)


def routed_lane(workload: Workload) -> Lane:
    """One routed row."""
    return replace(token_lane(workload), count=1, rows="routed")


def pointwise(moved_bytes: float, flops: float = 0.0, *, kind: str = "elementwise", launches: int = 1) -> Kernel:
    """A kernel whose time is its traffic: *moved_bytes* read and written, in *launches* equal parts."""
    return Kernel(kind, flops, moved_bytes, launches=launches)


def chain(elements: float, *steps: float | Step) -> tuple[Kernel, ...]:
    """Framework kernels one after the other over *elements* each; a bare number is a plain element-wise kernel."""
    return tuple(_kernel(elements, step if isinstance(step, Step) else Step("elementwise", step)) for step in steps)


def _kernel(elements: float, step: Step) -> Kernel:
    return Kernel(step.kind, elements, elements * step.bytes, dtype=step.dtype)

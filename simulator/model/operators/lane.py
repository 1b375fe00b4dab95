"""Lane: the rows that an operator runs over, and the kernels whose time is their traffic.

A lane of tokens carries totals over the rank's tokens; a lane of routed rows carries the cost of one row (a token sent
to one expert), because the lowering alone knows how many of them each rank gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Execution, Kernel, Rows, Saved, Workload

FP32_BYTES = 4
INT64_BYTES = 8

MIXER_INPUT = "mixer_input"
"""Name of the saved tensor that a mixer reads: the normalised residual stream."""
FEED_FORWARD_INPUT = "feed_forward_input"
"""Name of the saved tensor that a feed-forward part reads."""
_STRIDED_KIND = "scatter"


class Strided(float):
    """Bytes an element of a kernel over broadcast, strided or upcast operands.

    PyTorch runs these far below the bandwidth of plain element-wise kernels, as it does scatters (torch 2.11 on an
    H200: products with a broadcast factor 33 %, upcasts to fp32 32 %, concatenations 43 %, masked fills 38 %, copies
    of slices 31 % of 4.8 TB/s, where plain ones reach 85 %).
    """


@dataclass(frozen=True, slots=True)
class Lane:
    """*count* rows of activations with *element_bytes* an element, computed in one execution mode."""

    count: int
    execution: Execution
    element_bytes: int
    rows: Rows = "tokens"

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

    def saved(self, name: str, width: float, element_bytes: int | None = None) -> Saved:
        """The activation *name*, kept for an input's gradient."""
        return Saved(name, self.count * width * (self.element_bytes if element_bytes is None else element_bytes))


def token_lane(workload: Workload) -> Lane:
    """The rank's tokens."""
    return Lane(workload.tokens, workload.execution, workload.activation_bytes)


def routed_lane(workload: Workload) -> Lane:
    """One routed row."""
    return Lane(1, workload.execution, workload.activation_bytes, "routed")


def pointwise(moved_bytes: float, flops: float = 0.0, *, kind: str = "elementwise", launches: int = 1) -> Kernel:
    """A kernel whose time is its traffic: *moved_bytes* read and written, in *launches* equal parts."""
    return Kernel(kind, flops, moved_bytes, launches=launches)


def chain(elements: float, *bytes_per_element: float | Strided, kind: str = "elementwise") -> tuple[Kernel, ...]:
    """Framework kernels one after the other over *elements* each, with the bytes each of them moves per element."""
    return tuple(
        pointwise(elements * each, elements, kind=_STRIDED_KIND if isinstance(each, Strided) else kind)
        for each in bytes_per_element
    )

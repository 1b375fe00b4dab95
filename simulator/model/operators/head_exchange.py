"""Context parallelism by all-to-all: ranks trade their part of the sequence for a share of the heads, and back.

Between two exchanges a rank works on whole sequences with heads / cp of the heads (Jacobs et al., "DeepSpeed Ulysses",
2023). As Transformer Engine does it (`cp_comm_type` a2a), every tensor is exchanged on its own, between two copies: one
moves heads between the middle of a token and the outside, so that what goes to one rank lies together, the other picks
pieces of the sequence, of which a rank holds one from the front and one from the back. Gradients go the same way back.
What the core keeps is what it saw, between the exchanges; so its output is kept there and once more by the projection
that reads it behind.

Transformer Engine starts the copies of the next tensor while one is exchanged; here they follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.operator import Collective, Operator, Workload
from simulator.model.operators.lane import pointwise, token_lane

EXCHANGED_OUTPUT = "exchanged_output"
"""Name of the saved tensor that comes back from an exchange."""


def exchanges_heads(workload: Workload) -> bool:
    """Whether the ranks of *workload* trade sequence for heads."""
    return workload.cp > 1 and workload.context == "all_to_all"


def between_exchanges(workload: Workload) -> Workload:
    """*workload* as a rank sees it between two exchanges: whole sequences."""
    return replace(workload, cp=1)


def exchange(workload: Workload, *widths: float, back: bool = False) -> Iterator[Operator]:
    """One exchange of several tensors, *widths* elements wide for each of the rank's own tokens; *back*: to tokens."""
    sizes = [token_lane(workload).tensor_bytes(width) for width in widths]
    heads, pieces = (tuple(pointwise(2 * size, kind=kind) for size in sizes) for kind in ("transpose", "gather"))
    before, behind = (pieces, heads) if back else (heads, pieces)
    moves = tuple(Collective("all_to_all", "cp", size) for size in sizes)
    yield Operator("cp_pack", before, before, output_bytes=sum(sizes))
    yield Operator("cp_exchange", (), output_bytes=sum(sizes), forward_collectives=moves, backward_collectives=moves)
    yield Operator("cp_unpack", behind, behind, output_bytes=sum(sizes))

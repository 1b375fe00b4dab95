"""Communication inside a layer, as operators without kernels: what the ranks that split it exchange.

Tensor parallelism with sequence parallelism gathers tokens before a split part and scatters the sums behind it;
without, it copies and all-reduces (Shoeybi et al., 2019; Korthikanti et al., 2022). Megatron-LM keeps no gathered
input: the gradient of the weights gathers it again. PyTorch's DTensor keeps it; its tokens stand behind the sequences
of a micro-batch, and since the library joins and parts the first axis only, each gather is followed and each scatter
preceded by a copy of the whole tensor (`all_gather_tensor` and `reduce_scatter_tensor` of functional collectives).
A compiler makes one kernel of that copy in which every element is looked for in each part, and which sums the gradients
of several readers of an input on the way (inductor's `pointwise_cat`).

Context parallelism gathers keys and values, in both passes; linear attention hands its state from rank to rank instead.
Its other ways are in `head_exchange.py` and `ring_attention.py`. An axis of one rank communicates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from simulator.model.operator import Collective, Kernel, Operator, Workload
from simulator.model.operators.lane import FP32_BYTES, Lane, own_lane, pointwise, token_lane

LARGEST_JOINED_COPY = 8
"""Parts of the largest copy that is one kernel (inductor's `max_pointwise_cat_inputs`); more are copied one by one."""


def enter(workload: Workload, width: float, weights: tuple[str, ...] = ()) -> Iterator[Operator]:
    """Before a split part: its input, *width* wide, on every tp rank. *weights* are those that multiply it."""
    moved = token_lane(workload).tensor_bytes(width)
    if workload.tp == 1:
        return
    if not workload.sequence_parallel:
        yield Operator("tp_copy", (), backward_collectives=(Collective("all_reduce", "tp", moved),))
        return
    again = (Collective("all_gather", "tp", moved, weights),) if weights and workload.gathers_again else ()
    yield Operator(
        "tp_gather",
        forward=_rearranged(workload, moved),
        backward=_rearranged(workload, moved, max(1, len(weights))),
        output_bytes=moved,
        workspace_bytes=_before_copy(workload, moved),
        backward_workspace_bytes=_before_copy(workload, moved),
        forward_collectives=(Collective("all_gather", "tp", moved),),
        backward_collectives=(*again, Collective("reduce_scatter", "tp", moved)),
    )


def leave(workload: Workload, width: int) -> Iterator[Operator]:
    """Behind a split part: the sum of its partial outputs, *width* wide."""
    moved, own = token_lane(workload).tensor_bytes(width), own_lane(workload).tensor_bytes(width)
    if workload.tp == 1:
        return
    if not workload.sequence_parallel:
        yield Operator("tp_reduce", (), output_bytes=own, forward_collectives=(Collective("all_reduce", "tp", moved),))
        return
    yield Operator(
        "tp_scatter",
        forward=_rearranged(workload, moved),
        backward=_rearranged(workload, moved),
        output_bytes=own,
        workspace_bytes=_before_copy(workload, moved),
        backward_workspace_bytes=_before_copy(workload, moved),
        forward_collectives=(Collective("reduce_scatter", "tp", moved),),
        backward_collectives=(Collective("all_gather", "tp", moved),),
    )


def _rearranged(workload: Workload, moved: float, summands: int = 1) -> tuple[Kernel, ...]:
    """DTensor's copy of the whole tensor, on one side of its transfer or the other: nothing runs beside either.

    Compiled, it is the sum of so many tensors.
    """
    if workload.execution == "fused":
        return ()
    if workload.execution == "eager":
        return (pointwise(2 * moved, kind="cat"),)
    traffic = (summands + 1) * moved
    if workload.tp > LARGEST_JOINED_COPY:
        return (pointwise(traffic, kind="copy"),)
    return (Kernel("part_copy", summands * workload.tp * moved / workload.activation_bytes, traffic, dtype="fp32"),)


def _before_copy(workload: Workload, moved: float) -> float:
    """What is there beside the copy, as the library has it."""
    return 0.0 if workload.execution == "fused" else moved


def gather_columns(workload: Workload, width: int) -> Iterator[Operator]:
    """Behind a product whose columns tp ranks split: all columns of the rank's own tokens.

    The gradient of other ranks' tokens is gathered where each rank goes on with its own.
    """
    if workload.tp > 1:
        gather = (Collective("all_gather", "tp", token_lane(workload).tensor_bytes(width)),)
        own, back = own_lane(workload).tensor_bytes(width), gather if workload.sequence_parallel else ()
        yield Operator("tp_gather", (), output_bytes=own, forward_collectives=gather, backward_collectives=back)


def take_share(workload: Workload, width: int) -> Iterator[Operator]:
    """Before a dispatch of tokens that every tp rank holds: each sends its share; the gradients are gathered."""
    if workload.tp > 1 and not workload.sequence_parallel:
        moved = token_lane(workload).tensor_bytes(width)
        back = (Collective("all_gather", "tp", moved),)
        yield Operator("tp_copy", (), output_bytes=moved / workload.tp, backward_collectives=back)


def join_shares(workload: Workload, width: int) -> Iterator[Operator]:
    """Behind the combine of such shares: all tokens on every tp rank again."""
    if workload.tp > 1 and not workload.sequence_parallel:
        moved = token_lane(workload).tensor_bytes(width)
        yield Operator(
            "tp_gather", (), output_bytes=moved, forward_collectives=(Collective("all_gather", "tp", moved),)
        )


def share_experts(
    workload: Workload, routed: Lane, width: int, side: Literal["before", "behind"]
) -> Iterator[Operator]:
    """Around experts whose matrices etp ranks split: each brings the rows that it was sent, and takes their sums.

    Costs are per row of those that they have together.
    """
    if workload.etp == 1:
        return
    moved = routed.tensor_bytes(width)
    gather, scatter = Collective("all_gather", "etp", moved), Collective("reduce_scatter", "etp", moved)
    if side == "before":
        name, first, second, left = "tp_gather", gather, scatter, moved
    else:
        name, first, second, left = "tp_scatter", scatter, gather, moved / workload.etp
    yield Operator(
        name, (), rows="routed", output_bytes=left, forward_collectives=(first,), backward_collectives=(second,)
    )


def reduce_rows(workload: Workload, numbers: int, *, backward: bool) -> Iterator[Operator]:
    """All-reduces of *numbers* fp32 numbers a token over the tp ranks, one after the other; again *backward*."""
    if workload.tp == 1:
        return
    one = Collective("all_reduce", "tp", float(FP32_BYTES * workload.tokens))
    again = numbers if backward else 0
    yield Operator("tp_reduce", (), forward_collectives=(one,) * numbers, backward_collectives=(one,) * again)


def gather_context(workload: Workload, width: float, tokens_per_row: int = 1) -> Iterator[Operator]:
    """Keys and values of the whole sequences, *width* elements for every *tokens_per_row* tokens.

    A rank keeps its own, gathers the others' again backward, and returns their gradients.
    """
    if workload.cp == 1:
        return
    rows = sum(length // tokens_per_row for length in workload.sequence_lengths)
    moved = rows * width * workload.activation_bytes
    gather = Collective("all_gather", "cp", moved)
    yield Operator(
        "cp_gather",
        (),
        output_bytes=moved,
        forward_collectives=(gather,),
        backward_collectives=(gather, Collective("reduce_scatter", "cp", moved)),
    )


def hand_over_state(workload: Workload, elements: float) -> Iterator[Operator]:
    """The fp32 state at the end of a rank's part of each sequence, *elements* large, to the rank behind it."""
    if workload.cp > 1:
        hop = (Collective("relay", "cp", float(FP32_BYTES * elements * len(workload.sequence_lengths))),)
        yield Operator("cp_state", (), forward_collectives=hop, backward_collectives=hop)


def hand_over_edge(workload: Workload, tokens: int, width: int) -> Iterator[Operator]:
    """The last *tokens* tokens of a rank's part of each sequence, *width* elements each, to the rank behind it."""
    if workload.cp > 1:
        moved = float(tokens * width * workload.activation_bytes * len(workload.sequence_lengths))
        hop = (Collective("send", "cp", moved),)
        yield Operator("cp_state", (), forward_collectives=hop, backward_collectives=hop)

"""Rows on their way to the experts in fp8, with a scale for each 128 elements (DeepSeek-V3 report, section 3.3.3).

A token is cast before it is copied into its rows, so that rows, wire, the gather among etp ranks and expert order carry
one byte an element. What the experts return comes home in bf16. Backward the other way round: gradients of what the
experts returned travel in fp8, gradients of what they were sent in bf16.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.float8 import SCALE_BYTES
from simulator.model.operator import Kernel, Operator

_SHARE = (1 + SCALE_BYTES["blockwise"]) / 2
"""An fp8 element with its scale over a bf16 one."""


def exchanged_in_float8(operator: Operator) -> Operator:
    """*operator*, if it is one of those that move rows, as it runs on fp8 rows."""
    change = {
        "permute": _permute,
        "dispatch": _dispatch,
        "sort_by_expert": _expert_order,
        "sort_by_source": _gradient_order,
        "combine": _combine,
        "unpermute": _unpermute,
    }.get(operator.name)
    if change is None and any(c.axis == "etp" for c in operator.forward_collectives):
        return _shared_rows(operator)
    return change(operator) if change else operator


def _cast(rows: Kernel, copies_bytes: float) -> Kernel:
    """The cast of the tokens that *rows*, a gather into copies of *copies_bytes*, reads."""
    tokens_bytes = rows.bytes - copies_bytes
    return Kernel("quantize_blocks", 0.0, tokens_bytes * (1 + _SHARE))


def _smaller(kernel: Kernel) -> Kernel:
    return replace(kernel, bytes=kernel.bytes * _SHARE)


def _shared_rows(operator: Operator) -> Operator:
    """What etp ranks gather is in fp8, on both sides of the experts; what they add up is not."""
    forward, backward = (
        tuple(replace(c, bytes=c.bytes * _SHARE) if c.operation == "all_gather" else c for c in collectives)
        for collectives in (operator.forward_collectives, operator.backward_collectives)
    )
    gathers = any(collective.operation == "all_gather" for collective in forward)
    size = operator.output_bytes * (_SHARE if gathers else 1.0)
    return replace(operator, output_bytes=size, forward_collectives=forward, backward_collectives=backward)


def _permute(operator: Operator) -> Operator:
    *numbering, gather = operator.forward
    copies = operator.output_bytes
    forward = (*numbering, _cast(gather, copies), _smaller(gather))
    return replace(operator, forward=forward, output_bytes=copies * _SHARE)


def _dispatch(operator: Operator) -> Operator:
    return replace(operator, payload_bytes=operator.payload_bytes * _SHARE, output_bytes=operator.output_bytes * _SHARE)


def _expert_order(operator: Operator) -> Operator:
    forward = tuple(map(_smaller, operator.forward))
    return replace(operator, forward=forward, output_bytes=operator.output_bytes * _SHARE)


def _gradient_order(operator: Operator) -> Operator:
    return replace(operator, backward=tuple(map(_smaller, operator.backward)))


def _combine(operator: Operator) -> Operator:
    return replace(operator, backward_payload_bytes=operator.backward_payload_bytes * _SHARE)


def _unpermute(operator: Operator) -> Operator:
    """Backward, a token's gradient is cast and copied into its rows."""
    (gather,) = operator.backward
    copies = gather.bytes - operator.output_bytes
    return replace(operator, backward=(_cast(gather, copies), _smaller(gather)))

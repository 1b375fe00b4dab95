"""Activations kept in fewer bits between their passes, as DeepSeek-V3 keeps two of them (its report, section 3.3.3).

What the experts' activation reads stays in eight bits, with a scale for each 128 values. What attention returns stays
in twelve (E5M6), scaled alike, once for the core's own backward pass and for the gradient of the weight behind it. A
cast writes the small copy forward, and another puts the tensor back before the backward pass; both are kernels of
their own here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simulator.model.float8 import SCALE_BYTES, Float8
from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.attention_core import ATTENTION_OUTPUT
from simulator.model.operators.lane import EXPERT_HIDDEN

BF16_BYTES = 2.0
_SCALE_BYTES = SCALE_BYTES["blockwise"]
STORED: dict[str, float] = {EXPERT_HIDDEN: 1 + _SCALE_BYTES, ATTENTION_OUTPUT: 1.5 + _SCALE_BYTES}
"""Bytes of an element with its scale, by name of the tensor."""


def stored_compactly(operators: Iterable[Operator], float8: Float8 | None) -> tuple[Operator, ...]:
    """*operators* of a layer where the tensors that *float8* names are kept small."""
    operators = tuple(operators)
    if float8 is None or not float8.stored:
        return operators
    return tuple(_casting(_keeping(operator, float8.stored), operator, float8.stored) for operator in operators)


def _keeping(operator: Operator, names: frozenset[str]) -> Operator:
    """*operator* whose saved tensors of these *names* are small."""
    return replace(operator, saved=tuple(_small(t) if t.name in names else t for t in operator.saved))


def _small(tensor: Saved) -> Saved:
    return replace(tensor, bytes=tensor.bytes * STORED[tensor.name] / BF16_BYTES)


def _casting(kept: Operator, operator: Operator, names: frozenset[str]) -> Operator:
    """*kept* with the casts: forward where a tensor is made, backward where it is first needed that does not multiply.

    The cast of a product's result is written before it: a linear layer's last kernel is its product.
    """
    made = operator.makes if operator.makes in names else ""
    if made:
        kept = replace(kept, forward=(_cast(made, operator.output_bytes), *kept.forward))
    read = next((t for t in operator.saved if t.name in names and not operator.reads), None)
    if read is None:
        return kept
    return replace(
        kept,
        backward=(_cast(read.name, read.bytes), *kept.backward),
        backward_workspace_bytes=kept.backward_workspace_bytes + read.bytes,
    )


def _cast(name: str, size: float) -> Kernel:
    """From bf16 or back, of a tensor of *size* bytes in bf16."""
    return Kernel("quantize_blocks", 0.0, size * (1 + STORED[name] / BF16_BYTES))

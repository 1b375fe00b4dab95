"""Attention residuals (AttnRes): a sub-layer reads a softmax-weighted mix of earlier residual blocks and its own.

Scores are products of one learnt vector with the RMS-normed candidates; (n + 1) candidates cost 4 (n + 1) D FLOPs a
token. Fused: one read of the candidates and one write; unfused each candidate is read, normed in fp32 and read again,
10 B an element at least (models_and_formulas section 1.3). The blocks themselves stay alive through the whole forward
pass, and no layer keeps them.
"""

from __future__ import annotations

from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, pointwise

_FLOPS_PER_ELEMENT = 4


def residual_mix(lane: Lane, name: str, hidden: int, candidates: int, weights: tuple[str, str]) -> Operator:
    """The mix of *candidates* residual vectors; *weights* are its norm's scale and its scoring vector.

    Kept: the current residual and a score a candidate. Eager also keeps the candidates' fp32 copies, and the normed
    ones for the scoring vector's gradient.
    """
    elements, one = lane.count * candidates * hidden, lane.tensor_bytes(hidden)
    all_bytes, scores = candidates * one, lane.count * candidates * FP32_BYTES
    flops, b = float(_FLOPS_PER_ELEMENT * elements), lane.element_bytes
    kept = [lane.saved(f"{name}.residual", hidden), Saved(f"{name}.scores", 2 * scores)]
    if lane.eager:
        upcast, downcast = Step("cast_up", b + 4), Step("cast_down", 4 + b)
        product, by_row, row_sum = Step("broadcast", 2 * b), Step("broadcast", 8, "fp32"), Step("reduction", 4, "fp32")
        forward: tuple[Kernel, ...] = (
            *chain(elements, 2 * b, upcast, 8, row_sum, by_row, downcast, product, Step("reduction", b)),
            pointwise(3 * scores, kind="softmax"),
            *chain(elements, product, Step("reduction", b)),
        )
        backward: tuple[Kernel, ...] = (
            *chain(elements, product, 3 * b, Step("reduction", b)),
            pointwise(3 * scores, kind="softmax"),
            *chain(elements, product, product, upcast, by_row, 12, row_sum, by_row, 8, 12, downcast, 3 * b),
        )
        kept.append(Saved(f"{name}.fp32", elements * FP32_BYTES))
        kept.append(Saved(f"{name}.normalised", elements * b, "weight_gradient", weights))
        workspace = 2.0 * FP32_BYTES * elements
    else:
        forward = (pointwise(all_bytes + one + scores, flops, kind="norm"),)
        backward = (pointwise(3 * all_bytes + one + scores, 3 * flops, kind="norm"),)
        workspace = 0.0
    return Operator(
        name,
        forward,
        backward,
        backward_weight=(pointwise(4 * hidden * FP32_BYTES, kind="norm"),),
        weights=weights,
        saved=tuple(kept),
        output_bytes=one,
        workspace_bytes=workspace,
        backward_workspace_bytes=workspace,
    )

"""The router of a mixture of experts: one thin product, then scores, the choice of experts and the rows' new order.

2 D E FLOPs a token (models_and_formulas section 3.8). Fused stacks score and choose in one kernel and sort in three;
Megatron-LM's way is in `megatron_router.py`.
Eager PyTorch upcasts to fp32 in its softmax, and runs a few dozen small kernels to sort; autograd keeps the fp32 scores
and the int64 positions.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import MixtureOfExperts
from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.dispatch import ordered_positions, sort_positions
from simulator.model.operators.gemm import linear
from simulator.model.operators.lane import FEED_FORWARD_INPUT, FP32_BYTES, INT64_BYTES, Lane, chain, pointwise
from simulator.model.operators.megatron_router import megatron_choice

_ORDER_TABLES = 3
"""Positions that eager keeps beside the choice: rows to slots, slots to rows, slots to tokens."""
_PAIR_SORT_LAUNCHES = 11
"""Kernels that sort token-expert pairs (torch 2.11)."""
_EAGER_ORDER_LAUNCHES = 13
"""Histogram, running sum, comparisons, casts and the inverse order."""


def router_operators(
    component: MixtureOfExperts, lane: Lane, hidden: int, *, padded: bool = False, fused: bool = False
) -> tuple[Operator, ...]:
    """Router product and choice for each token; *padded*: every expert takes as many of them.

    *fused*: Megatron-LM's in Transformer Engine's kernels.
    """
    choices = component.experts + component.zero_experts
    product = linear(lane, "router", FEED_FORWARD_INPUT, hidden, choices, ("mlp.gate.weight",))
    if lane.megatron:
        return replace(product, reads=""), megatron_choice(component, lane, choices, padded=padded, fused=fused)
    return replace(product, reads=""), _choice(component, lane, choices)


def _weight_gradients(lane: Lane, pairs: int) -> tuple[Kernel, ...]:
    """From the rows' order back to the tokens', through the division by their sum. Eager sorts positions once more."""
    division = chain(pairs, *(3 * FP32_BYTES,) * (8 if lane.eager else 3))
    if not lane.eager:
        return division
    return (*ordered_positions(pairs), pointwise(3 * pairs * lane.element_bytes, kind="scatter_put"), *division)


def _choice(component: MixtureOfExperts, lane: Lane, choices: int) -> Operator:
    tokens, k = lane.count, component.top_k
    logits, scores = lane.tensor_bytes(choices), FP32_BYTES * tokens * choices
    chosen = tokens * k * (FP32_BYTES + INT64_BYTES)
    pairs = tokens * k * INT64_BYTES
    if lane.execution == "fused":
        forward: tuple[Kernel, ...] = (
            pointwise(logits + scores + chosen, 5.0 * tokens * choices, kind="topk"),
            sort_positions(tokens * k, 3),
        )
        backward: tuple[Kernel, ...] = (pointwise(2 * scores + logits, kind="softmax"),)
        order = pairs
    else:
        small = _EAGER_ORDER_LAUNCHES if lane.eager else 1
        forward = (
            pointwise(logits + scores, 5.0 * tokens * choices, kind="softmax"),
            pointwise(scores + chosen, kind="topk"),
            *chain(tokens * k, FP32_BYTES, 3 * FP32_BYTES, FP32_BYTES + lane.element_bytes),
            sort_positions(tokens * k, _PAIR_SORT_LAUNCHES),
            pointwise(2 * small * pairs, launches=small),
        )
        backward = (
            *_weight_gradients(lane, tokens * k),
            pointwise(scores, kind="fill"),
            pointwise(2 * chosen, kind="scatter"),
            pointwise(2 * scores + logits, kind="softmax"),
        )
        order = _ORDER_TABLES * pairs
    bias = ("mlp.gate.e_score_correction_bias",) if component.router_bias else ()
    kept = (Saved("router_scores", scores), Saved("router_choice", chosen), Saved("row_order", order))
    return Operator("route", forward, backward, weights=bias, saved=kept, output_bytes=chosen)

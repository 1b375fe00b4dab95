"""The choice of experts as Megatron-LM makes it by default: a chain of framework kernels over all tokens and experts.

Scores and choice go back into tables of tokens by experts, the weights of the chosen and a mask; then a second softmax
and a second choice for the balancing loss, and the sums over tokens of both. Copies and casts of tables are most of it.
Where every expert takes as many tokens, the tokens of each expert are chosen once more, by their weights. The kernels
are those of megatron-core 0.16.1 (`TopKRouter`, `topk_routing_with_score_function`, `apply_router_token_dropping`), as
a profile on an H200 shows them: 32 forward and 16 backward for 4,096 tokens and 256 experts, 213 us and 39 us, and 33
and 5 more where experts are padded. `--moe-router-fusion` is off.
"""

from __future__ import annotations

from simulator.model.architecture import MixtureOfExperts
from simulator.model.operator import Kernel, Operator, Saved
from simulator.model.operators.lane import FP32_BYTES, INT64_BYTES, Lane, Step, chain, pointwise

_MASK_BYTES = 1
_SMALL = 9
"""Kernels over each token's choices or over each expert: weights, sums, the loss and its place in the log."""
_SMALL_BACKWARD = 8
_RADIX = 18
"""Passes in which the tokens of an expert are chosen among all of them."""
_EXPERT_SUMS = 3
"""Kernels that count rows of each expert, for the exchange."""


def megatron_choice(component: MixtureOfExperts, lane: Lane, choices: int, *, padded: bool) -> Operator:
    """Choice of experts by *lane*'s tokens among *choices*; *padded*: then of as many tokens for every expert."""
    tokens, k, b = lane.count, component.top_k, lane.element_bytes
    scores, table = FP32_BYTES * tokens * choices, tokens * choices
    chosen = tokens * k * (FP32_BYTES + INT64_BYTES)
    forward = (
        pointwise(scores + chosen, kind="topk"),
        *chain(table, *_tables(b)),
        *chain(table, Step("softmax", b + FP32_BYTES)),
        pointwise(scores + chosen, kind="topk"),
        *chain(table, *_mask(b), Step("reduction", _MASK_BYTES), Step("reduction", FP32_BYTES, "fp32")),
        _few(tokens * k, 3 + _SMALL),
        *(_fill_experts(tokens, table, b) if padded else (_few(choices, _EXPERT_SUMS),)),
    )
    masks = 2 * table * _MASK_BYTES if padded else 0
    bias = ("mlp.gate.e_score_correction_bias",) if component.router_bias else ()
    return Operator(
        "route",
        forward,
        _backward(lane, choices, k, padded=padded),
        weights=bias,
        saved=(Saved("router_scores", scores), Saved("router_choice", chosen + masks)),
        output_bytes=chosen,
    )


def _tables(b: int) -> tuple[float | Step, ...]:
    """Zeros and a copy of them that takes the weights; then the mask. *b*: bytes of a weight."""
    return Step("fill", b), 2 * b, *_mask(b)


def _mask(b: int) -> tuple[float | Step, ...]:
    """Zeros, cast to int32, a copy that takes the ones, cast to a byte."""
    counted = FP32_BYTES
    return Step("fill", b), Step("cast_up", b + counted), 2 * counted, Step("cast_down", counted + _MASK_BYTES)


def _few(elements: int, launches: int) -> Kernel:
    """Kernels over so few elements that their start is all they cost."""
    return pointwise(2.0 * launches * elements * FP32_BYTES, launches=launches)


def _fill_experts(tokens: int, table: int, b: int) -> tuple[Kernel, ...]:
    """The tokens of every expert, found by radix over their weights, as a mask, and the weights that it leaves."""
    mask = Step("cast_down", b + _MASK_BYTES)
    return (
        pointwise(2.0 * b * table, kind="topk"),
        _few(tokens, _RADIX),
        *chain(table, Step("fill", b), 2 * b, mask, 2 * b + _MASK_BYTES),
    )


def _backward(lane: Lane, choices: int, k: int, *, padded: bool) -> tuple[Kernel, ...]:
    """From the tables back to the logits, through the choice and both softmaxes."""
    table, b = lane.count * choices, lane.element_bytes
    back = (Step("softmax", 3 * FP32_BYTES, "fp32"), Step("cast_down", FP32_BYTES + b))
    spread = (2 * FP32_BYTES, *back, Step("fill", b), 3 * b)
    return (
        *chain(table, *spread, *((2 * b + _MASK_BYTES, *back) if padded else ())),
        _few(lane.count * k, 3 + _SMALL_BACKWARD),
    )

"""The choice of experts as Megatron-LM makes it: a chain of framework kernels over all tokens and experts.

Scores and choice go back into tables of tokens by experts, the weights of the chosen and a mask; then a second softmax
and a second choice for the balancing loss, and the sums over tokens of both. Copies and casts of tables are most of it.
Where every expert takes as many tokens, the tokens of each expert are chosen once more, by their weights. The kernels
are those of megatron-core 0.16.1 (`TopKRouter`, `topk_routing_with_score_function`, `apply_router_token_dropping`), as
a profile on an H200 shows them: 32 forward and 16 backward for 4,096 tokens and 256 experts, 213 us and 39 us, and 33
and 5 more where experts are padded.

Routers with a bias score by sigmoids, which are divided by their sum for each token, twice, and count what each expert
got: 9 kernels more forward and 13 backward, and 9 forward where experts are chosen within groups. Counted by running
that version's router (`tests/validation/count_router_kernels.py`), as is what is left of all with `moe_router_fusion`:
Transformer Engine's kernels for choice, scores and loss, and what PyTorch runs around them.
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
_SIGMOID_SMALL, _SIGMOID_SMALL_BACKWARD = 5, 8
"""More of the small kernels where weights are sigmoids over their sum."""
_GROUP_SMALL = 5
"""And where groups are chosen: their sums and choice, and the choice as a mask of groups."""
_FUSED_SMALL, _FUSED_SMALL_BACKWARD = 5, 6
"""Beside the fused kernels: casts, the loss scaled and put in the log and its place in the graph; gradients' zeros."""


def megatron_choice(
    component: MixtureOfExperts, lane: Lane, choices: int, *, padded: bool, fused: bool = False
) -> Operator:
    """Choice of experts by *lane*'s tokens among *choices*; *padded*: then of as many tokens for every expert.

    *fused*: in Transformer Engine's kernels.
    """
    tokens, k, b = lane.count, component.top_k, lane.element_bytes
    scores, table = FP32_BYTES * tokens * choices, tokens * choices
    chosen = tokens * k * (FP32_BYTES + INT64_BYTES)
    chosen_by = _fused(component, table, b, chosen) if fused else _chain(component, lane, table, chosen)
    behind = _fill_experts(tokens, table, b) if padded else (_few(choices, _EXPERT_SUMS),)
    backward = _fused_backward if fused else _backward
    masks = 2 * table * _MASK_BYTES if padded else 0
    bias = ("mlp.gate.e_score_correction_bias",) if component.router_bias else ()
    return Operator(
        "route",
        (*chosen_by, *behind),
        backward(component, lane, table, padded=padded),
        weights=bias,
        saved=(Saved("router_scores", scores), Saved("router_choice", chosen + masks)),
        output_bytes=chosen,
    )


def _chain(component: MixtureOfExperts, lane: Lane, table: int, chosen: float) -> tuple[Kernel, ...]:
    """Scores and choice as tables, then those of the loss, and its sums."""
    scores, pairs, b = FP32_BYTES * table, lane.count * component.top_k, lane.element_bytes
    again: tuple[float | Step, ...] = (Step("softmax", b + FP32_BYTES),)
    if component.router_bias:
        again = _sigmoids()
    return (
        *_group_choice(component, lane.count, table),
        pointwise(scores + chosen, kind="topk"),
        *chain(table, *_tables(b)),
        *chain(table, *again),
        pointwise(scores + chosen, kind="topk"),
        *chain(table, *_mask(b), Step("reduction", _MASK_BYTES), Step("reduction", FP32_BYTES, "fp32")),
        _few(pairs, 3 + _SMALL + (_SIGMOID_SMALL if component.router_bias else 0)),
    )


def _fused(component: MixtureOfExperts, table: int, b: int, chosen: float) -> tuple[Kernel, ...]:
    """Logits to weights and mask, to scores and their choice, and the sums of both."""
    counts = 2 if component.router_bias else 0
    choice = pointwise(table * (b + FP32_BYTES + _MASK_BYTES) + chosen, kind="topk")
    sums = chain(table, Step("reduction", _MASK_BYTES), Step("reduction", FP32_BYTES, "fp32"))
    return choice, choice, *sums, _few(component.experts, _FUSED_SMALL + counts)


def _tables(b: int) -> tuple[float | Step, ...]:
    """Zeros and a copy of them that takes the weights; then the mask. *b*: bytes of a weight."""
    return Step("fill", b), 2 * b, *_mask(b)


def _mask(b: int) -> tuple[float | Step, ...]:
    """Zeros, cast to int32, a copy that takes the ones, cast to a byte."""
    counted = FP32_BYTES
    return Step("fill", b), Step("cast_up", b + counted), 2 * counted, Step("cast_down", counted + _MASK_BYTES)


def _sigmoids() -> tuple[float | Step, ...]:
    """Scores and scores with the bias; the loss's scores, their sum and division by it."""
    return 2 * FP32_BYTES, 2 * FP32_BYTES, 2 * FP32_BYTES, Step("reduction", FP32_BYTES, "fp32"), 2 * FP32_BYTES


def _group_choice(component: MixtureOfExperts, tokens: int, table: int) -> tuple[Kernel, ...]:
    """The best scores of each group, the best groups as a mask of experts, and the scores without the others."""
    if component.groups == 1:
        return ()
    mask = Step("cast_down", FP32_BYTES + _MASK_BYTES), 2 * _MASK_BYTES
    return (
        pointwise(FP32_BYTES * table, kind="topk"),
        *chain(table, *mask, Step("masked_fill", 2 * FP32_BYTES + _MASK_BYTES)),
        _few(tokens * component.groups, _GROUP_SMALL),
    )


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


def _backward(component: MixtureOfExperts, lane: Lane, table: int, *, padded: bool) -> tuple[Kernel, ...]:
    """From the tables back to the logits, through the choice and both softmaxes, or sigmoids over their sums."""
    b, sigmoid = lane.element_bytes, component.router_bias
    spread: tuple[float | Step, ...] = (2 * FP32_BYTES, *_to_logits(b), Step("fill", b), 3 * b)
    quotient = (3 * FP32_BYTES, 3 * FP32_BYTES, 2 * FP32_BYTES, 3 * FP32_BYTES, FP32_BYTES) if sigmoid else ()
    small = 3 + _SMALL_BACKWARD + (_SIGMOID_SMALL_BACKWARD if sigmoid else 0)
    return (
        *chain(table, *spread, *quotient, *_through_padding(b, padded=padded)),
        _few(lane.count * component.top_k, small),
    )


def _fused_backward(_component: MixtureOfExperts, lane: Lane, table: int, *, padded: bool) -> tuple[Kernel, ...]:
    """The loss to scores, scores and weights to logits, and their sum."""
    b = lane.element_bytes
    back = Step("softmax", 2 * FP32_BYTES + b, "fp32")
    return (
        *chain(table, FP32_BYTES, back, back, 3 * b, *_through_padding(b, padded=padded)),
        _few(lane.count, _FUSED_SMALL_BACKWARD),
    )


def _through_padding(b: int, *, padded: bool) -> tuple[float | Step, ...]:
    return (2 * b + _MASK_BYTES, *_to_logits(b)) if padded else ()


def _to_logits(b: int) -> tuple[Step, ...]:
    return Step("softmax", 3 * FP32_BYTES, "fp32"), Step("cast_down", FP32_BYTES + b)

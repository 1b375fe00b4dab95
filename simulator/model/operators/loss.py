"""The end of the model: final norm, output projection, cross-entropy, in five variants.

N tokens, vocabulary V, hidden D (models_and_formulas section 3.9). "plain": all logits at once, 6 N D V FLOPs with both
gradients. "compiled": the same with one kernel each way, which keeps the logits as they are. "chunked": some tokens at
a time with their gradients, same FLOPs, two gradients of the matrix at once. "vocab_parallel": all at once in fp32, in
place, framework kernel by framework kernel (Megatron-LM's own). "cut": along the vocabulary in one kernel
that keeps a log-sum-exp a token and computes the logits again, 8 N D V.
Tensor-parallel ranks split the vocabulary and agree on each token's maximum, sum and own logit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Literal

from simulator.model.architecture import Architecture
from simulator.model.operator import Kernel, Operator, Saved, Workload
from simulator.model.operators import embedding
from simulator.model.operators.communication import enter, reduce_rows
from simulator.model.operators.gemm import linear, product
from simulator.model.operators.lane import FP32_BYTES, Lane, Step, chain, gathered_lane, own_lane, pointwise, token_lane
from simulator.model.operators.norm import NormShape, either_norm
from simulator.model.operators.residual_mix import residual_mix

Variant = Literal["plain", "compiled", "chunked", "cut", "vocab_parallel"]

_SOFTMAX_FLOPS = 5
_REDUCTIONS = 3
_HEAD_INPUT = "head_input"


def operators(architecture: Architecture, workload: Workload, variant: Variant) -> tuple[Operator, ...]:
    """Everything after the last layer."""
    return (*_before_head(architecture, own_lane(workload)), *head(architecture, workload, variant))


def head(architecture: Architecture, workload: Workload, variant: Variant) -> tuple[Operator, ...]:
    """What comes behind the final norm."""
    # A chunked loss makes its gradients in the forward pass; a cut one keeps its input for both passes.
    again = _weight(architecture) if variant in ("plain", "compiled", "vocab_parallel") else ()
    variants = {
        "plain": _plain, "compiled": _compiled, "chunked": _chunked, "cut": _cut, "vocab_parallel": _vocab_parallel
    }  # fmt: skip
    return (
        *enter(workload, architecture.hidden, again),
        *variants[variant](architecture, workload),
        *reduce_rows(workload, _REDUCTIONS, backward=False),
    )


def _before_head(architecture: Architecture, lane: Lane) -> Iterator[Operator]:
    """The last residual mix, where the model has one, and the final norm."""
    hidden = architecture.hidden
    streams = max((layer.hyper_connections for layer in architecture.layers), default=1)
    if architecture.attn_res_block:
        candidates = architecture.layers[-1].residual_blocks + 1
        weights = ("model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight")
        yield residual_mix(lane, "output_residual_mix", hidden, candidates, weights)
    if streams > 1:
        yield _join_streams(lane, hidden, streams)
    shape, weight = NormShape(hidden), "model.norm.weight"
    yield either_norm(lane, "final_norm", "final_residual", shape, weight, bias=architecture.norm_bias)


def _join_streams(lane: Lane, hidden: int, streams: int) -> Operator:
    """Hyper-connections' streams summed into one, with weights from a thin product."""
    all_bytes, one, elements = lane.tensor_bytes(streams * hidden), lane.tensor_bytes(hidden), lane.count * hidden
    flops = 2.0 * streams * elements * (streams + 1)
    return Operator(
        "join_streams",
        forward=(pointwise(2 * all_bytes + one, flops),),
        backward=(pointwise(2 * all_bytes + one, 2 * flops),),
        weights=("hc_head_fn", "hc_head_base", "hc_head_scale"),
        saved=(lane.saved("streams", streams * hidden),),
        output_bytes=one,
    )


def _weight(architecture: Architecture) -> tuple[str]:
    return (embedding.WEIGHT if architecture.tied_embeddings else "lm_head.weight",)


def _held_vocabulary(architecture: Architecture, workload: Workload) -> int:
    """Columns of the output projection on one tp rank."""
    return ceil(architecture.vocabulary / workload.tp)


def _plain(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Frameworks upcast the logits and keep fp32 log-probabilities, then need two more such tensors for the gradient.

    The cast is an operator of its own: the gradient in bf16 is made when one of those three is left (trace of PyTorch
    2.11's allocator). A fused loss overwrites the logits by their gradient in the forward pass and scales that in place
    backward, by the gradient of each token's loss (Transformer Engine's `parallel_cross_entropy`).
    """
    lane, vocabulary = token_lane(workload), _held_vocabulary(architecture, workload)
    head = linear(
        gathered_lane(workload), "lm_head", _HEAD_INPUT, architecture.hidden, vocabulary, _weight(architecture)
    )
    elements, logits = float(lane.count * vocabulary), lane.tensor_bytes(vocabulary)
    if lane.execution == "fused":
        kernel = pointwise(3 * logits, _SOFTMAX_FLOPS * elements, kind="loss")
        loss = Operator(
            "cross_entropy",
            forward=(kernel,),
            backward=(pointwise(2 * logits, elements),),
            saved=(Saved("logit_gradient", logits),),
            gradient_in_place=True,
        )
        return head, loss
    wide = FP32_BYTES * elements
    widen = Operator(
        "logits_to_fp32",
        forward=(pointwise(logits + wide, kind="cast_up"),),
        backward=(pointwise(logits + wide, kind="cast_down"),),
        output_bytes=wide,
    )
    softmax, gradient, beside = _softmax(elements) if workload.tp == 1 else _split_softmax(elements)
    loss = Operator(
        "cross_entropy",
        forward=(*softmax, pointwise(2 * FP32_BYTES * lane.count, kind="gather")),
        backward=(
            *chain(elements, Step("fill", FP32_BYTES, "fp32")),
            pointwise(2 * FP32_BYTES * lane.count, kind="scatter"),
            *gradient,
        ),
        # log_softmax keeps its result, and nll_loss its input.
        saved=(Saved("log_probabilities", wide, nodes=2),),
        # The fp32 logits, and the bf16 ones that the caller of the model holds on to until the loss is there.
        workspace_bytes=wide + logits + beside,
        backward_workspace_bytes=wide + beside,
    )
    return head, widen, loss


def _softmax(elements: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    """One kernel each way on so many fp32 *elements*, and no bytes beside."""
    wide, flops = FP32_BYTES * elements, _SOFTMAX_FLOPS * elements
    return (pointwise(2 * wide, flops, kind="loss"),), (pointwise(3 * wide, flops, kind="loss"),), 0.0


def _split_softmax(elements: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    """DTensor's, of the columns of a tp rank (`torch.distributed.tensor.parallel.loss_parallel`), and the bytes beside.

    Forward the maximum, the difference to it, its exponential, their sum and the difference to its logarithm; backward
    the exponential, its sum with the labels' ones and the product with each token's gradient. Each time one tensor more
    is alive than beside the one kernel (allocator trace, torch 2.11).
    """
    row, by_row = Step("reduction", FP32_BYTES, "fp32"), Step("broadcast", 2 * FP32_BYTES, "fp32")
    exponential = Step("elementwise", 2 * FP32_BYTES, "fp32")
    forward = chain(elements, row, by_row, exponential, row, by_row)
    backward = chain(elements, exponential, Step("elementwise", 3 * FP32_BYTES, "fp32"), by_row)
    return forward, backward, FP32_BYTES * elements


def _compiled(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """A compiler's loss: one pass for each token's maximum and sum, and one from logits to their gradient.

    Nothing is written in fp32 but those two numbers a token.
    """
    lane, vocabulary = token_lane(workload), _held_vocabulary(architecture, workload)
    head = linear(
        gathered_lane(workload), "lm_head", _HEAD_INPUT, architecture.hidden, vocabulary, _weight(architecture)
    )
    logits, flops = lane.tensor_bytes(vocabulary), float(_SOFTMAX_FLOPS * lane.count * vocabulary)
    loss = Operator(
        "cross_entropy",
        forward=(pointwise(logits, flops, kind="loss"),),
        backward=(pointwise(2 * logits, flops, kind="loss"),),
        saved=(Saved("logits", logits), Saved("loss_statistics", 2 * FP32_BYTES * lane.count)),
    )
    return head, loss


def _vocab_parallel(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Logits in fp32, less each token's maximum, to the exponential and over its sum, all in one tensor that is kept.

    Backward, the label's one is taken from it and it is scaled by the gradient of each token's loss, in place again;
    autograd casts it to the logits' format (Megatron-LM `tensor_parallel/cross_entropy.py`).
    """
    lane, vocabulary = token_lane(workload), _held_vocabulary(architecture, workload)
    head = linear(
        gathered_lane(workload), "lm_head", _HEAD_INPUT, architecture.hidden, vocabulary, _weight(architecture)
    )
    elements, by_row, row = float(lane.count * vocabulary), Step("broadcast", 8, "fp32"), Step("reduction", 4, "fp32")
    upcast, downcast = Step("cast_up", 2 + FP32_BYTES), Step("cast_down", FP32_BYTES + 2)
    label = pointwise(3 * FP32_BYTES * lane.count, kind="gather")
    loss = Operator(
        "cross_entropy",
        forward=(
            *chain(elements, upcast, row, by_row),
            label,
            *chain(elements, Step("elementwise", 8, "fp32"), row, by_row),
        ),
        backward=(replace(label, kind="scatter"), *chain(elements, by_row, downcast)),
        saved=(Saved("probabilities", FP32_BYTES * elements),),
    )
    return head, loss


def _chunked(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Chunk by chunk with the gradients at once, so that the backward pass only hands them on.

    Measured peak beside them (H200, 8,192 tokens, 1,024 at a time): three fp32 tensors of a chunk's logits, or the
    matrix's own gradient of one chunk beside bf16 logits if that is more; it is computed for a frozen matrix too. The
    products of the weight's gradient are listed as such, though they run in the forward pass.
    """
    lane, hidden, vocabulary = token_lane(workload), architecture.hidden, _held_vocabulary(architecture, workload)
    b = lane.element_bytes
    rows = min(lane.count, workload.loss_chunk_tokens)
    chunks, weights = ceil(lane.count / rows), _weight(architecture)
    elements, logits = float(lane.count * vocabulary), lane.tensor_bytes(vocabulary)
    matrix, wide = b * hidden * vocabulary, FP32_BYTES * elements
    chunk_wide, chunk_logits = FP32_BYTES * rows * vocabulary, b * rows * (vocabulary + hidden)
    return (
        Operator(
            "chunked_cross_entropy",
            forward=(
                *_per_chunk(lane, rows, vocabulary, hidden),
                pointwise(logits + wide, kind="cast_up", launches=chunks),
                pointwise(2 * wide, _SOFTMAX_FLOPS * elements, kind="loss", launches=chunks),
                pointwise(wide, kind="fill", launches=chunks),
                pointwise(3 * wide, _SOFTMAX_FLOPS * elements, kind="loss", launches=chunks),
                pointwise(logits + wide, kind="cast_down", launches=chunks),
                *_per_chunk(lane, rows, hidden, vocabulary),
            ),
            backward_weight=(
                *(
                    replace(kernel, shape=(vocabulary, hidden, kernel.shape[0]))
                    for kernel in _per_chunk(lane, rows, vocabulary, hidden)
                ),
                pointwise(3.0 * matrix * chunks, float(hidden * vocabulary * chunks), launches=chunks),
            ),
            weights=weights,
            saved=(
                lane.saved("head_input_gradient", hidden),
                Saved("head_gradient", matrix, "weight_gradient", weights),
            ),
            workspace_bytes=max(3 * chunk_wide, matrix + chunk_logits),
        ),
    )


def _per_chunk(lane: Lane, rows: int, n: int, k: int) -> tuple[Kernel, ...]:
    """One product for so many rows at a time, the last one over those that are left."""
    chunks = ceil(lane.count / rows)
    last = lane.count - (chunks - 1) * rows
    return (*(product(lane, rows, n, k) for _ in range(chunks - 1)), product(lane, last, n, k))


def _cut(architecture: Architecture, workload: Workload) -> tuple[Operator, ...]:
    """Cut cross-entropy: tiles of logits that never reach memory; both gradients compute them again.

    All of them: how many tiles a filter of small gradients leaves out depends on the logits.
    """
    lane, hidden, vocabulary = token_lane(workload), architecture.hidden, _held_vocabulary(architecture, workload)
    weights = _weight(architecture)
    tile = product(lane, lane.count, vocabulary, hidden)
    statistics = FP32_BYTES * lane.count
    flops = tile.flops
    moved = lane.tensor_bytes(hidden) + lane.element_bytes * hidden * vocabulary

    def kernel(products: int, bytes_moved: float) -> Kernel:
        return Kernel("loss", products * flops, bytes_moved, tile.shape, tile.dtype)

    return (
        Operator(
            "cut_cross_entropy",
            forward=(
                kernel(1, moved + statistics),
                pointwise(2 * lane.tensor_bytes(hidden), 2.0 * lane.count * hidden),
            ),
            backward=(kernel(2, 2 * moved + statistics),),
            backward_weight=(kernel(1, moved),),
            weights=weights,
            saved=(
                Saved(_HEAD_INPUT, lane.tensor_bytes(hidden)),
                Saved("loss_statistics", statistics),
            ),
        ),
    )

"""Model FLOPs: the arithmetic that the step needs, without recomputation, for model FLOPs utilisation (MFU)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from simulator.model.architecture import Layer, MixtureOfExperts
from simulator.model.operator import OVERHEADS, Kernel, Operator
from simulator.model.operators.layers import embedding_operators, layer_operators, loss_operators
from simulator.model.operators.multi_token_prediction import module_embedding, module_loss, module_parts
from simulator.model.operators.vision import segments
from simulator.program.image_code import differentiated
from simulator.program.job import Job


def model_flops(job: Job) -> float:
    """FLOPs of one micro-batch on the mean rank: forward, gradients of inputs, and of weights where they are trained.

    Adapters are left out: they are thin. The loss counts as the plain one, whatever variant recomputes logits, and
    mixers as their kernels, whatever small operators compute beside.
    """
    usual = (job.workload.sequence_lengths,)
    ranks = Counter(lengths for batch in job.micro_batches for lengths in (batch.lengths or usual * job.mesh.ep))
    found = {
        lengths: _flops_of(replace(job, workload=replace(job.workload, sequence_lengths=lengths))) for lengths in ranks
    }
    return sum(found[lengths] * count for lengths, count in ranks.items()) / ranks.total() + _image_flops(job)


def _flops_of(job: Job) -> float:
    """Those of a rank with the job's sequences, but for images."""
    workload = replace(job.workload, core_kernels="fused")
    trained = job.trained.lora_rank is None
    tokens = workload.sent_tokens * job.mesh.etp
    parts = [
        *embedding_operators(job.architecture, workload),
        *loss_operators(job.architecture, workload, "plain"),
    ]
    total = sum(_flops(operator, 1.0, trained=trained) for operator in parts)
    known: dict[tuple[object, object, int], float] = {}
    for layer in job.architecture.layers:
        make = layer.mixer, layer.feed_forward, layer.residual_blocks
        if make not in known:
            operators = layer_operators(job.architecture, layer, workload)
            known[make] = sum(_flops(op, _rows(layer, tokens), trained=trained) for op in operators)
        total += known[make]
    return total + sum(_module_flops(job, module, tokens, trained=trained) for module in job.architecture.mtp_modules())


def _module_flops(job: Job, module: tuple[Layer, ...], tokens: int, *, trained: bool) -> float:
    """Those of a multi-token-prediction module, the head that it runs once more included."""
    model, workload = job.architecture, job.workload
    ends = module_embedding(model, workload, adds=False), module_loss(model, workload, "plain", adds=False)
    parts = [*module_parts(model, module, workload, keeps_hidden=False), *((None, operators) for operators in ends)]
    return sum(
        _flops(operator, _rows(layer, tokens) if layer else 0.0, trained=trained)
        for layer, operators in parts
        for operator in operators
    )


def _image_flops(job: Job) -> float:
    """Those of the vision tower and its projector over the mean rank's images."""
    tower, load = job.architecture.vision, job.images
    if tower is None or load is None:
        return 0.0
    one = segments(tower, replace(job.workload, image_patches=(load.patches,)))
    flops = sum(
        _flops(operator, 1.0, trained=job.trained.whole(segment.role))
        for segment in one
        for operator in differentiated(job.trained, segment).operators
    )
    counts = [batch.images.counts for batch in job.micro_batches if batch.images is not None]
    return flops * float(np.mean(counts))


def _rows(layer: Layer, tokens: int) -> float:
    """Routed rows of a rank under mean load."""
    part = layer.feed_forward
    return float(tokens * part.top_k) if isinstance(part, MixtureOfExperts) else 0.0


def _flops(operator: Operator, routed_rows: float, *, trained: bool) -> float:
    """Forward and backward; a backward pass beyond twice the forward is kernels computing again (flash attention)."""
    forward = _asked(operator.forward)
    backward = _asked(operator.backward + (operator.backward_weight if trained else ()))
    rows = routed_rows if operator.rows == "routed" else 1.0
    return rows * (forward + min(backward, 2 * forward))


def _asked(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.flops for kernel in kernels if kernel.kind not in OVERHEADS)

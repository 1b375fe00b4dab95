"""Prices of eager operators against profiled training steps on one H200, sort by sort.

torch 2.11, transformers 5.17, bf16; the optimizer's kernels are left out. Measured milliseconds are sums over the names
of the step's kernels; attention counts the kernels around its main one. Left out: sums of 128-wide heads, which take
twice what sums of whole rows do, and Mixtral's casts, since Hugging Face weighs its experts' rows in fp32. Mixtral's
grouped products are priced 80 ms for 71: a row of kernels without a pause, which tells their share, slows them more.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    GroupedAttention,
    Layer,
    MixtureOfExperts,
)
from simulator.model.operator import Kernel, Workload
from simulator.model.operators.layers import embedding_operators, layer_operators, loss_operators

H200 = load_accelerator("h200-sxm", Path())
SAME_RATE = {"copy": "elementwise", "transpose": "broadcast"}
"""Sorts whose kernels share their names in a profile."""


def decoder(
    layers: int, hidden: int, vocabulary: int, attention: GroupedAttention, feed_forward: FeedForward, *, tied: bool
) -> Architecture:
    stack = tuple(Layer(index, attention, feed_forward) for index in range(layers))
    return Architecture("test", hidden, vocabulary, stack, tied_embeddings=tied)


LLAMA_1B = decoder(16, 2048, 128_256, GroupedAttention(32, 8, 64), DenseFeedForward(8192), tied=True)
QWEN = GroupedAttention(32, 4, 128, qk_norm="head")
QWEN_MOE = decoder(8, 2048, 151_936, QWEN, MixtureOfExperts(128, 8, 768), tied=False)
MIXTRAL = decoder(3, 4096, 32_000, GroupedAttention(32, 8, 128), MixtureOfExperts(8, 2, 14_336), tied=False)

LLAMA_1B_MS = {
    "gemm": 160.5, "attention": 45.0, "elementwise": 38.7, "broadcast": 36.4, "loss": 16.3, "cast_up": 13.3,
    "cast_down": 6.0, "reduction": 4.1, "cat": 2.97, "fill": 2.81,
}  # fmt: skip
QWEN_MOE_MS = {
    "broadcast": 32.1, "gemm": 28.0, "grouped_gemm": 27.1, "elementwise": 16.7, "masked_fill": 16.0, "attention": 15.1,
    "loss": 9.7, "cast_up": 7.0, "scatter_put": 5.2, "cast_down": 3.4, "fill": 2.4, "cat": 1.25,
}  # fmt: skip
MIXTRAL_MS = {
    "grouped_gemm": 71.0, "broadcast": 17.4, "gemm": 16.3, "elementwise": 11.4, "masked_fill": 10.2, "attention": 6.3,
    "loss": 1.95, "scatter_put": 1.07, "fill": 0.71, "cat": 0.55,
}  # fmt: skip


def milliseconds(architecture: Architecture, workload: Workload) -> dict[str, float]:
    """Device time of one step by sort of kernel, with an even load of the experts."""
    layer = layer_operators(architecture, architecture.layers[0], workload)
    local = [operator for operator in layer if not operator.expert_parallel_only] * len(architecture.layers)
    found: dict[str, float] = defaultdict(float)
    for operator in (
        *local,
        *embedding_operators(architecture, workload),
        *loss_operators(architecture, workload, "plain"),
    ):
        rows = expert_rows(architecture, workload) if operator.rows == "routed" else None
        for kernel in operator.forward:
            found[SAME_RATE.get(kernel.kind, kernel.kind)] += price(kernel, rows)
        for kernel in operator.backward:
            found[SAME_RATE.get(kernel.kind, kernel.kind)] += price(kernel, rows, backward=True)
        for kernel in operator.backward_weight:
            found[SAME_RATE.get(kernel.kind, kernel.kind)] += price(kernel, rows, backward=True, weight_gradient=True)
    return found


def expert_rows(architecture: Architecture, workload: Workload) -> np.ndarray:
    part = architecture.layers[0].feed_forward
    assert isinstance(part, MixtureOfExperts)
    return np.full(part.experts, workload.tokens * part.top_k / part.experts)


def price(kernel: Kernel, rows: np.ndarray | None, *, backward: bool = False, weight_gradient: bool = False) -> float:
    n, per_row = kernel.launches, 1.0 if rows is None else rows.sum()
    held = kernel.fixed_bytes * (1 if rows is None else len(rows))
    time = kernel_time(
        H200, kernel.kind, kernel.flops * per_row / n, (kernel.bytes * per_row + held) / n, kernel.shape, kernel.dtype,
        rows=rows, backward=backward, weight_gradient=weight_gradient,
    )  # fmt: skip
    return 1e3 * n * float(time.seconds)


@pytest.mark.parametrize(
    ("architecture", "sequences", "measured_ms", "whole_ms"),
    [(LLAMA_1B, 4, LLAMA_1B_MS, 326.7), (QWEN_MOE, 2, QWEN_MOE_MS, 173.8), (MIXTRAL, 2, MIXTRAL_MS, 144.2)],
    ids=["llama-1b", "qwen3-moe", "mixtral"],
)
def test_time_of_each_sort_of_kernel_in_a_step(
    architecture: Architecture, sequences: int, measured_ms: dict[str, float], whole_ms: float
) -> None:
    found = milliseconds(architecture, Workload((4096,) * sequences, "eager"))
    for kind, measured in measured_ms.items():
        assert found[kind] == pytest.approx(measured, rel=0.15), kind
    assert sum(found.values()) == pytest.approx(whole_ms, rel=0.06)

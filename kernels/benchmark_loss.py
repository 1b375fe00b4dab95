"""The loss of a head, forward and backward: plain, two ways of this project, and public packages where they are there.

The packages are Liger's fused linear loss (`liger-kernel`) and Apple's cut loss (`cut-cross-entropy`), which leaves out
gradients below a threshold unless told not to. `kernels.benchmarks` runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from kernels import loss
from kernels.reference import loss as plain_loss
from kernels.timing import Row, differentiated, drawn, errors, package, peak_bytes, seconds

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MOST_WORDS_IN_FP32 = 2**16


def plain(x: torch.Tensor, w: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """All logits at once, in the type of their factors."""
    return torch.nn.functional.cross_entropy(x @ w.T, label)


def ways() -> Iterator[tuple[str, Row, Loss | None]]:
    """(name, what a row says of where it comes from, the loss or None where its package is missing) of each way."""
    yield "plain", {}, plain
    yield "chunk", {}, loss.chunk_loss
    yield "cut", {}, loss.cut_loss
    liger, row = package("liger-kernel", "liger_kernel.ops")
    yield "Liger", row, liger and (lambda x, w, n: liger.LigerFusedLinearCrossEntropyFunction.apply(x, w, n)[0])
    apple, row = package("cut-cross-entropy", "cut_cross_entropy")
    yield "cut-cross-entropy", row, apple and apple.linear_cross_entropy
    exact = apple and partial(apple.linear_cross_entropy, filter_eps=None)
    yield "cut-cross-entropy, all gradients", row, exact


def losses() -> Iterator[Row]:
    """Errors of each way where fp32 logits fit with ease, else its time and its peak beside the gradients."""
    for N, D, V in ((1000, 512, 5003), (8192, 4096, 128256), (8192, 7168, 163840)):
        x, w = drawn(N, D), drawn(V, D) * D**-0.5
        label = torch.randint(V, (N,), device="cuda")
        label[::7] = loss.IGNORED
        one = torch.ones((), device="cuda")
        for name, origin, function in ways():
            pieces = -(-V // loss.sides(N, D, V, loss.BUDGET_BYTES, 2)[1]) if name == "cut" else 1
            row: Row = {"kernel": f"loss, {name}", "pass": "forward and backward", "shape": (N, D, V)} | origin
            row["flops"] = (8.0 - 2.0 / pieces) * N * D * V
            if function is not None:
                labelled = lambda x, w, f=function, n=label: f(x, w, n)  # noqa: E731
                if V < MOST_WORDS_IN_FP32:
                    row["errors"] = errors(labelled, partial(plain_loss.plain_loss, label_N=label), [x, w], one)
                else:
                    call = differentiated(labelled, [x, w], one)
                    row["s"] = seconds(call, 4)
                    row["peak_beside_gradients_bytes"] = peak_bytes(call) - 2 * (x.numel() + w.numel())
            yield row

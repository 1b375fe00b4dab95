"""Cross-entropy over a vocabulary in fp32, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.clock import point
from simulator.calibration.point import Point

VOCABULARY = 128256


def measure(sizes: tuple[int]) -> Iterator[Point]:
    """The framework's own chain for so many tokens: log-softmax, the choice of labels; backward, a fill before them."""
    (tokens,) = sizes
    logits = torch.randn(tokens, VOCABULARY, device="cuda", requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (tokens,), device="cuda")
    n, shape = tokens * VOCABULARY, (tokens, VOCABULARY)

    def forward() -> torch.Tensor:
        return f.cross_entropy(logits, labels)

    yield point("loss", "cross_entropy fp32", shape, forward, traffic=8.0 * n, dtype="fp32")
    loss = forward()

    def backward() -> object:
        return torch.autograd.grad(loss, logits, retain_graph=True)

    name = "cross_entropy fp32 backward, filled first"
    yield point("loss", name, shape, backward, traffic=12.0 * n, dtype="fp32", backward=True)

"""What the tests of the kernels share: random inputs, and the distance of a kernel's results from its reference's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def heads(tokens: int, count: int, width: int, seed: int = 0) -> list[torch.Tensor]:
    """(q, k, v, raw gate, raw beta, rate, bias), gates from hardly any decay to nearly the strongest."""
    four = [drawn(tokens, count, width, seed=seed + i) for i in range(4)]
    four[3] *= 3
    rest = [drawn(tokens, count, seed=seed + 4), drawn(count, seed=seed + 5).exp(), drawn(count, width, seed=seed + 6)]
    return [*four, *rest]


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted, in fp64; nan stays nan."""
    wide = wanted.detach().double()
    return float((found.detach().double() - wide).norm() / wide.norm().clamp(min=1e-30))


def distances(
    kernel: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[float]:
    """Distance of the result, then of the gradient of each of *inputs*, under one random gradient of the result.

    The reference gets the inputs in fp32.
    """
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    theirs = [x.detach().float().requires_grad_() for x in inputs]
    found, wanted = kernel(*ours), reference(*theirs)
    gradient = drawn(*wanted.shape, seed=99).to(wanted.device)
    found.backward(gradient.to(found.dtype))
    wanted.backward(gradient)
    pairs = [(found, wanted), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    return [distance(a, b) for a, b in pairs if a is not None and b is not None]


def in_order(chosen: torch.Tensor) -> list[list[int]]:
    """The places *chosen* for each row, whose order means nothing."""
    return chosen.sort(dim=1).values.tolist()

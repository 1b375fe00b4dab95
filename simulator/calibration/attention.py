"""Causal softmax attention, forward and backward, through the framework's own choice of kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.clock import point
from simulator.calibration.point import Point

SHAPES = (
    (4, 32, 8, 64, 4096), (2, 32, 4, 128, 4096), (1, 32, 8, 128, 2048), (1, 32, 8, 128, 8192), (1, 32, 8, 128, 32768),
    (1, 16, 16, 128, 16384), (1, 64, 8, 128, 8192), (4, 16, 8, 128, 1024), (16, 16, 8, 64, 512), (1, 96, 96, 128, 8192),
)  # fmt: skip
"""(batch, heads, kv heads, head dim, length)."""
LATENT = ((1, 16, 4096), (1, 64, 4096), (2, 32, 4096), (1, 96, 8192))
"""(batch, heads, length) with query and key heads of 192 and value heads of 128."""


def measure(*, quick: bool = False) -> Iterator[Point]:
    """Grouped heads as a framework sees them, then latent attention's unequal heads."""
    for batch, heads, kv_heads, dim, length in SHAPES[::3] if quick else SHAPES:
        yield from _shape(batch, heads, kv_heads, (dim, dim), length)
    for batch, heads, length in LATENT[:1] if quick else LATENT:
        yield from _shape(batch, heads, heads, (192, 128), length)


def _shape(batch: int, heads: int, kv_heads: int, dims: tuple[int, int], length: int) -> Iterator[Point]:
    qk, v = dims

    def heads_of(count: int, dim: int) -> torch.Tensor:
        data = torch.randn(batch, length, count, dim, device="cuda", dtype=torch.bfloat16)
        return data.transpose(1, 2).requires_grad_()

    query, key, value = heads_of(heads, qk), heads_of(kv_heads, qk), heads_of(kv_heads, v)

    def forward() -> torch.Tensor:
        return f.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != kv_heads)

    pairs = batch * length * (length + 1) / 2
    traffic = 2.0 * batch * length * (heads + kv_heads) * (qk + v)
    shape = (heads, qk, length, batch, kv_heads, v)
    flops = 2.0 * heads * (qk + v) * pairs
    yield point("attention", "sdpa forward", shape, forward, flops=flops, traffic=traffic)
    result = forward()
    gradient = torch.randn_like(result)

    def backward() -> object:
        return torch.autograd.grad(result, (query, key, value), gradient, retain_graph=True)

    flops = 2.0 * heads * (3 * qk + 2 * v) * pairs
    yield point("attention", "sdpa backward", shape, backward, flops=flops, traffic=2.0 * traffic, backward=True)

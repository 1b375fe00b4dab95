"""Causal softmax attention, forward and backward, through the framework's own choice of kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as f

from simulator.calibration.clock import point
from simulator.calibration.point import Point


def measure(sizes: tuple[int, int, int, int, int, int]) -> Iterator[Point]:
    """Both passes of one shape: batch, heads, kv heads, width of queries and keys, width of values, length."""
    batch, heads, kv_heads, qk, v, length = sizes

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

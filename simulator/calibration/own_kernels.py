"""The project's own Triton kernels (`kernels/`): delta attention, lightning indexer, sparse attention, cut loss.

They stand for the hand-fused kernels of a stack on a part where nothing else was measured. Found in a checkout; an
installed package has none, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

from simulator.calibration.clock import device_time
from simulator.calibration.point import Point

HEADS, HEAD = 96, 128
TOP = 2048
LATENT, ROPE = 512, 64
SCALE = (HEAD + ROPE) ** -0.5
REPEATS = 5

Work = tuple[str, str, float, float, bool]
"""Name, format, FLOPs, bytes, and whether it is a backward pass."""


Timed = Iterator[tuple[str, Work, Callable[[], object]]]


def measure(shape: tuple[Any, ...]) -> Iterator[Point]:
    """One kernel on one size. Raise :exc:`ImportError` where the kernels are not there."""
    name, *sizes = shape
    ways: dict[str, Callable[..., Timed]] = {
        "kda": _kda,
        "kda decode": _decode,
        "indexer": _indexer,
        "sparse attention": _sparse,
        "cut loss": _loss,
    }
    for kind, (label, dtype, flops, traffic, backward), call in ways[name](*sizes):
        times = device_time(call, REPEATS)
        yield Point(kind, f"own {label}", tuple(sizes), dtype, flops, traffic, *times, backward)


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def _heads(tokens: int) -> list[torch.Tensor]:
    """(q, k, v, raw gate, raw beta, rate, bias) of delta attention."""
    four = [_drawn(tokens, HEADS, HEAD) for _ in range(4)]
    bias = torch.randn(HEADS, HEAD, device="cuda")
    return [*four, _drawn(tokens, HEADS), torch.rand(HEADS, device="cuda") + 0.5, bias]


def _kda(tokens: int) -> Timed:
    """FLOPs and bytes of a token and head as the fused operator counts them."""
    kda, gradients = import_module("kernels.kda"), import_module("kernels.kda_backward")
    inputs, each = _heads(tokens), tokens * HEADS
    yield "kda", ("kda", "bf16", 169984.0 * each, 1282.0 * each, False), lambda: kda.kda_forward(inputs)
    chunks, do = kda.checked(inputs, None, -5.0), _drawn(tokens, HEADS, HEAD)
    work = ("kda backward", "bf16", 450560.0 * each, 2566.0 * each, True)
    yield "kda", work, lambda: gradients.kda_backward(inputs, chunks, None, -5.0, do, None)


def _decode(sequences: int) -> Timed:
    kda = import_module("kernels.kda")
    inputs, state = _heads(sequences), torch.randn(sequences, HEADS, HEAD, HEAD, device="cuda")
    traffic = (131072.0 + 1282.0) * sequences * HEADS
    yield "kda_decode", ("kda decode", "bf16", 0.0, traffic, False), lambda: kda.kda_decode(inputs, state)


def _indexer(heads: int, width: int, tokens: int) -> Timed:
    """Scores of one sequence, and the choice of keys, in one kernel, in fp8."""
    indexer = import_module("kernels.indexer")
    q, k = _drawn(tokens, heads, width), _drawn(tokens, width)
    weight = torch.rand(tokens, heads, device="cuda")
    (q8, q_scale), (k8, k_scale) = indexer.rounded_to_fp8(q), indexer.rounded_to_fp8(k)
    flops = 2.0 * heads * (width + 1) * tokens * (tokens + 1) / 2
    traffic = float(tokens * (heads + 1) * width) + 4.0 * tokens * TOP
    work = ("indexer and choice", "fp8", flops, traffic, False)
    yield "indexer_choice", work, lambda: indexer.choose_keys(q8, k8, weight * q_scale, TOP, k_scale)


def _sparse(queries: int, keys: int) -> Timed:
    forward, backward = import_module("kernels.sparse_attention"), import_module("kernels.sparse_attention_backward")
    q, kv = _drawn(queries, HEADS, LATENT + ROPE), _drawn(keys, LATENT + ROPE)
    index = torch.randint(keys, (queries, TOP), device="cuda", dtype=torch.int32)
    work = 2.0 * queries * TOP * HEADS
    traffic = 2.0 * (q.numel() + kv.numel() + queries * HEADS * LATENT)

    def run() -> Any:
        return forward.sparse_forward(q, kv, index, LATENT, SCALE)

    known = ("sparse attention", "bf16", work * (2 * LATENT + ROPE), traffic, False)
    yield "sparse_attention", known, run
    o, lse = run()
    do = torch.randn_like(o)
    known = ("sparse attention backward", "bf16", work * (5 * LATENT + 3 * ROPE), 2 * traffic, True)
    yield "sparse_attention", known, lambda: backward.gradients(q, kv, index, o, lse, do, SCALE)


def _loss(rows: int, width: int, vocabulary: int) -> Timed:
    """Both passes: logits are made twice, and the gradients of both operands once."""
    loss = import_module("kernels.loss")
    x, w = _drawn(rows, width).requires_grad_(), (_drawn(vocabulary, width) * width**-0.5).requires_grad_()
    label = torch.randint(vocabulary, (rows,), device="cuda")

    def run() -> object:
        return torch.autograd.grad(loss.cut_loss(x, w, label), (x, w))

    work = ("cut loss, both passes", "bf16", 8.0 * rows * width * vocabulary, 4.0 * (x.numel() + w.numel()), False)
    yield "loss", work, run

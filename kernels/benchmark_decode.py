"""What an iteration of decoding runs: attention to a cache, products of few rows, and small kernels in a CUDA graph.

All are timed as graphs of many calls one behind the other, since that is how engines replay them: a kernel's start
hides behind the end of the one before. Calls go round among operands that together are several times the L2 cache, so
that each finds its weights or keys in memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice, product

import torch

from kernels import decode_attention, decode_steps, gated_unit, grouped_gemm, rms_norm
from kernels.reference import decode_attention as plain
from kernels.timing import BF16, Row, distance, drawn

CALLS = 24
REPLAYS = 5
APART_BYTES = 320 * 2**20
"""Of operands that calls go round among."""
E4M3 = torch.float8_e4m3fn
BLOCK = 128
GROUPED = ((32, 8, 128), (8, 1, 128), (64, 8, 64))
"""Query heads, key heads and channels: Llama 3 8B, a rank of eight of Llama 3 70B, gpt-oss."""
LATENT = (128, 96, 16)
"""Heads: DeepSeek-V3, Kimi K3.1, a rank of eight of DeepSeek-V3."""
CONTEXTS = ((1, 1024), (1, 8192), (1, 131072), (8, 2048), (8, 16384), (32, 512), (32, 4096), (128, 1024), (128, 4096),
            (256, 4096))  # fmt: skip
"""Sequences and tokens of each."""
THIN = ((6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (2112, 7168), (24576, 1536), (7168, 16384),
        (4096, 7168), (7168, 2048), (1024, 8192), (129280, 7168))  # fmt: skip
"""Outputs and inputs of linear layers."""
ROWS = (1, 4, 16, 32, 64, 128, 256)
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 8, 4096, 14336, 32, 8, 128
"""Of Llama 3 8B."""
EXPERTS = ((32, 4096, 7168), (32, 7168, 2048), (128, 1536, 2048), (128, 2048, 768), (14, 6144, 3584))
"""Experts of a rank, outputs, inputs."""
ROWS_EACH = (1, 8, 32, 64, 128, 256)


def in_graph(calls: list[Callable[[], object]]) -> float:
    """Median seconds of one of *calls*, replayed one behind the other in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph, turns = torch.cuda.CUDAGraph(), list(islice(cycle(calls), max(CALLS, len(calls))))
    with torch.cuda.graph(graph):
        for call in turns:
            call()
    times = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(turns))
    return statistics.median(times[1:])


def copies(each: float) -> int:
    """Operands of so many bytes that calls go round among."""
    return max(1, min(CALLS, round(APART_BYTES / each)))


def paged(sequences: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table of pages in no order, and lengths."""
    pages = -(-tokens // decode_attention.PAGE)
    table = torch.randperm(sequences * pages, device="cuda").to(torch.int32).view(sequences, pages)
    return table, torch.full((sequences,), tokens, dtype=torch.int32, device="cuda")


def attentions() -> Iterator[Row]:
    """Grouped heads and latents by sequences and context."""
    for (heads, groups, width), (sequences, tokens) in product(GROUPED, CONTEXTS):
        yield _grouped(heads, groups, width, sequences, tokens)
    for heads, (sequences, tokens) in product(LATENT, CONTEXTS):
        yield _latent(heads, sequences, tokens)


def _grouped(heads: int, groups: int, width: int, sequences: int, tokens: int) -> Row:
    table, length = paged(sequences, tokens)
    each = 4.0 * sequences * tokens * groups * width
    shape = (table.numel(), decode_attention.PAGE, groups, width)
    caches = [(drawn(*shape), drawn(*shape)) for _ in range(copies(each))]
    q = drawn(sequences, heads, width)
    run = partial(decode_attention.grouped, table_BP=table, length_B=length, scale=width**-0.5)
    row: Row = {"kernel": "decode_attention", "shape": (heads, groups, width, sequences, tokens), "bytes": each}
    row["flops"] = 4.0 * sequences * tokens * heads * width
    if sequences * tokens <= 2**14:
        wanted = plain.attend(q.float(), *(x.float() for x in caches[0]), table, length, width**-0.5)
        row["error"] = distance(run(q, *caches[0]), wanted)
    return row | {"s": in_graph([partial(run, q, key, value) for key, value in caches])}


def _latent(heads: int, sequences: int, tokens: int) -> Row:
    table, length = paged(sequences, tokens)
    each = 2.0 * sequences * tokens * 576
    caches = [drawn(table.numel(), decode_attention.PAGE, 576) for _ in range(copies(each))]
    q, scale = drawn(sequences, heads, 576), 192**-0.5
    row: Row = {"kernel": "decode_latent", "shape": (heads, sequences, tokens), "bytes": each}
    row["flops"] = 2.0 * heads * (576 + 512) * sequences * tokens
    if sequences * tokens <= 2**13:
        key = caches[0].float()[:, :, None]
        wanted = plain.attend(q.float(), key, key[..., :512], table, length, scale)
        row["error"] = distance(decode_attention.latent(q, caches[0], table, length, scale, 512), wanted)
    calls = [partial(decode_attention.latent, q, cache, table, length, scale, 512) for cache in caches]
    return row | {"s": in_graph(calls)}


def thin_products() -> Iterator[Row]:
    """Linear layers of few rows, in bf16 and in fp8 by the scales of operands."""
    for (n, k), m in product(THIN, ROWS):
        weights = [drawn(n, k) for _ in range(copies(2.0 * n * k))]
        x = drawn(m, k)
        calls = [partial(torch.nn.functional.linear, x, w) for w in weights]
        yield {"kernel": "thin", "shape": (m, n, k), "dtype": "bf16", "s": in_graph(calls)}
        for dtype, left, right, fast in _scales(m, n, k):
            try:
                eights = [drawn(n, k).to(E4M3).t() for _ in range(copies(1.0 * n * k))]
                a = x.to(E4M3)
                run = partial(torch._scaled_mm, out_dtype=BF16, use_fast_accum=fast)
                calls = [partial(run, a, b, left, right) for b in eights]
                yield {"kernel": "thin", "shape": (m, n, k), "dtype": dtype, "s": in_graph(calls)}
            except RuntimeError as error:
                yield {"kernel": "thin", "shape": (m, n, k), "dtype": dtype, "failed": str(error)[:120]}


def _scales(m: int, n: int, k: int) -> tuple[tuple[str, torch.Tensor, torch.Tensor, bool], ...]:
    one, steps = torch.ones((), device="cuda"), k // BLOCK
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    blocks = torch.ones(steps, m, device="cuda").t(), torch.ones(-(-n // BLOCK), steps, device="cuda").t()
    return ("fp8", one, one, True), ("fp8/rowwise", rows, columns, True), ("fp8/blockwise", *blocks, False)


def thin_experts() -> Iterator[Row]:
    """Grouped products of few rows each: the framework's in bf16 and fp8, and `grouped_gemm`."""
    for (experts, n, k), rows in product(EXPERTS, ROWS_EACH):
        ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows
        x, shape = drawn(experts * rows, k), (experts, rows, n, k)
        weights = [drawn(experts, n, k).transpose(1, 2) for _ in range(copies(2.0 * experts * n * k))]
        calls = [partial(torch._grouped_mm, x, w, offs=ends) for w in weights]
        yield {"kernel": "thin_experts", "shape": shape, "dtype": "bf16", "s": in_graph(calls)}
        plain_weights = [w.contiguous() for w in weights]
        calls = [partial(grouped_gemm.rows_product, x, w, ends, transposed=False) for w in plain_weights]
        yield {"kernel": "thin_experts", "shape": shape, "dtype": "bf16", "by": "kernels", "s": in_graph(calls)}
        left, right = torch.ones(experts * rows, device="cuda"), torch.ones(experts, n, device="cuda")
        a, eights = x.to(E4M3), [w.to(E4M3).transpose(1, 2).contiguous().transpose(1, 2) for w in weights]
        run = partial(torch._scaled_grouped_mm, offs=ends, out_dtype=BF16, use_fast_accum=True)
        calls = [partial(run, a, b, left, right) for b in eights]
        yield {"kernel": "thin_experts", "shape": shape, "dtype": "fp8/rowwise", "s": in_graph(calls)}


def small_kernels() -> Iterator[Row]:
    """Kernels between the products of a layer, on few rows, that find their operands in the L2 cache."""
    for m, width in product((1, 16, 64, 256), (4096, 7168)):
        x, y, weight = drawn(m, width), drawn(m, width), drawn(width)
        scores = torch.rand(m, 256, device="cuda")
        logits = torch.rand(m, 129280, device="cuda")
        named: dict[str, Callable[[], object]] = {
            "elementwise": partial(torch.add, x, y),
            "torch_norm": partial(torch.nn.functional.rms_norm, x, (width,), weight),
            "norm": partial(rms_norm.rms_norm, x, weight),
            "add_norm": partial(decode_steps.add_norm, x, y, weight),
            "swiglu": partial(gated_unit.swiglu, x),
            "choice_8_of_256": partial(decode_steps.choose_experts, drawn(m, 256), scores[0], 8),
            "choice_16_of_896": partial(decode_steps.choose_experts, drawn(m, 896), logits[0, :896].contiguous(), 16),
            "copy": partial(torch.clone, x),
            "topk": partial(torch.topk, scores, 8),
            "softmax": partial(torch.softmax, scores, -1),
            "argmax": partial(torch.argmax, logits, -1),
            "sort": partial(torch.sort, torch.randint(256, (m * 8,), device="cuda")),
        }
        for name, call in named.items():
            yield {"kernel": "small", "shape": (m, width), "kind": name, "s": in_graph([call])}


def layers() -> Iterator[Row]:
    """A layer of Llama 3 8B that decodes, of eight one behind the other, without rotation and without writing keys."""
    stack = [_Layer() for _ in range(LAYERS)]
    for sequences, tokens in ((1, 1024), (1, 16384), (16, 1024), (64, 1024), (64, 4096), (256, 1024)):
        table, length = paged(sequences, tokens)
        shape = (table.numel(), decode_attention.PAGE, KV_HEADS, HEAD)
        caches = [(drawn(*shape), drawn(*shape)) for _ in stack]
        x, residual = drawn(sequences, HIDDEN), drawn(sequences, HIDDEN)
        calls = [
            partial(layer.decode, x, residual, *cache, table, length)
            for layer, cache in zip(stack, caches, strict=True)
        ]
        yield {"kernel": "decode_layer", "shape": (sequences, tokens), "s": in_graph(calls)}


class _Layer:
    """Weights of one layer."""

    def __init__(self) -> None:
        self.norms = torch.ones(HIDDEN, device="cuda", dtype=BF16), torch.ones(HIDDEN, device="cuda", dtype=BF16)
        self.qkv, self.out = drawn((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN) / 64, drawn(HIDDEN, HEADS * HEAD) / 64
        self.gate_up, self.down = drawn(2 * INNER, HIDDEN) / 64, drawn(HIDDEN, INNER) / 120

    def decode(
        self, x: torch.Tensor, residual: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor,
        length: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """The layer's output for the sum of *x* and *residual*."""
        linear, (first, second) = torch.nn.functional.linear, self.norms
        qkv = linear(decode_steps.add_norm(x, residual, first), self.qkv)
        q = qkv[:, : HEADS * HEAD].reshape(len(x), HEADS, HEAD)
        mixed = decode_attention.grouped(q, key, value, table, length, HEAD**-0.5)
        x = linear(mixed.flatten(1), self.out)
        hidden = linear(decode_steps.add_norm(x, residual, second), self.gate_up)
        return linear(gated_unit.swiglu(hidden), self.down)

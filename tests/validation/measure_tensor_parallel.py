"""Kernels of one rank of a tensor-parallel Llama layer as DTensor, torchao and inductor make them, measured on one GPU.

The layer is torchtitan's: sequence parallel norms, attention with rotation in complex numbers, a gated feed-forward
part, split over eight ranks of which this is one. Its collectives are replaced by copies of the right shapes, so that
one GPU runs what every rank runs; kernels of those copies are named `CatArrayBatchedCopy` and `tanh`.

    python measure_tensor_parallel.py MODEL RECIPE TP > kernels.json

MODEL is 8b or 70b, RECIPE bf16, tensorwise or rowwise, TP 8, or 1 for whole weights and fewer tokens. Needs torch,
torchao (0.11 was used) and one GPU. Prints one JSON object: the step in milliseconds, and name and microseconds of
every kernel of a forward and backward pass, in order.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

HEAD, KV_HEADS, LENGTH = 128, 8, 8192
MODELS = {"8b": (4096, 32, 14_336, 12), "70b": (8192, 64, 28_672, 8)}
"""Width, heads, width of the feed-forward part, and sequences that eight ranks share."""
STEPS = 5


class Attention(nn.Module):
    """Grouped attention, keys and values repeated to all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.repeats = heads // KV_HEADS
        self.wq = nn.Linear(width, heads * HEAD, bias=False)
        self.wk = nn.Linear(width, KV_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(width, KV_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(heads * HEAD, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Attend over whole sequences."""
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, HEAD) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        k, v = (t.unsqueeze(3).expand(*t.shape[:3], self.repeats, HEAD).flatten(2, 3) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.wo(mixed.transpose(1, 2).contiguous().view(batch, length, -1))
        return output


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of elements as complex numbers, turned by *angles*."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles.view(1, x.shape[1], 1, HEAD // 2)).flatten(3).type_as(x)


class FeedForward(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        output: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return output


class Block(nn.Module):
    """A layer."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads), FeedForward(width, inner)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Apply it."""
        h = x + self.attention(self.attention_norm(x), angles)
        output: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return output


def copies_for_collectives() -> torch.library.Library:
    """The functional collectives as copies on this rank; they last as long as what is returned."""
    library = torch.library.Library("_c10d_functional", "IMPL")

    def gathered(x: Tensor, ranks: int, group: str) -> Tensor:
        bits = x.view(torch.uint8) if x.element_size() == 1 else x
        return torch.cat([bits] * ranks).view(x.dtype)

    library.impl("all_gather_into_tensor", gathered, "CUDA")
    library.impl("reduce_scatter_tensor", lambda x, op, n, group: x.narrow(0, 0, x.shape[0] // n).tanh(), "CUDA")
    library.impl("all_reduce", lambda x, op, group: x.abs(), "CUDA")
    library.impl("wait_tensor", lambda x: x, "CUDA")
    return library


def split(block: nn.Module, recipe: str, tp: int) -> None:
    """Share *block* between *tp* ranks as torchtitan does."""
    mesh = init_device_mesh("cuda", (tp,))
    columns, rows, prepare = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if recipe == "tensorwise":
        from torchao.float8 import float8_tensor_parallel as eight

        columns, rows = eight.Float8ColwiseParallel, eight.Float8RowwiseParallel
        prepare = eight.PrepareFloat8ModuleInput
    parts, whole = Shard(1), Replicate()
    plan = {
        "attention_norm": SequenceParallel(),
        "ffn_norm": SequenceParallel(),
        "attention": prepare(input_layouts=(parts, None), desired_input_layouts=(whole, None)),
        "feed_forward": prepare(input_layouts=(parts,), desired_input_layouts=(whole,)),
        "attention.wo": rows(output_layouts=parts),
        "feed_forward.w2": rows(output_layouts=parts),
    }
    names = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    parallelize_module(block, mesh, {**plan, **{name: columns() for name in names}})


def main() -> None:
    """Measure what the command line names."""
    model, recipe, tp = sys.argv[1], sys.argv[2], int(sys.argv[3])
    width, heads, inner, sequences = MODELS[model]
    sequences = sequences if tp > 1 else 1
    library = copies_for_collectives()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    with torch.device("cuda"):
        block: nn.Module = Block(width, heads, inner).to(torch.bfloat16)
        angles = torch.polar(torch.ones(LENGTH, HEAD // 2), torch.rand(LENGTH, HEAD // 2))
        x = torch.randn(sequences, LENGTH // tp, width, dtype=torch.bfloat16).requires_grad_()
        gradient = torch.randn_like(x)
    if recipe != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(block, config=Float8LinearConfig.from_recipe_name(recipe))
    if tp > 1:
        split(block, recipe, tp)
    compiled = torch.compile(block, fullgraph=True)

    def step() -> None:
        compiled(x, angles).backward(gradient)
        x.grad = None
        block.zero_grad()

    for _ in range(3):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    events = sorted(profiled.events(), key=lambda event: event.time_range.start)
    kernels = [[event.name, event.time_range.elapsed_us()] for event in events]
    json.dump({"step_ms": begin.elapsed_time(end) / STEPS, "kernels": kernels}, sys.stdout)
    sys.stdout.flush()
    del library
    os._exit(0)  # the fake group waits for nobody


if __name__ == "__main__":
    main()

"""Host time of a layer under Megatron-LM's stack, measured: what a step takes where the host launches too slowly.

The layer is GPT's as Megatron-LM writes it down: one autograd function around each fused kernel and each region that
tensor-parallel ranks share, compiled element-wise functions, attention as two products and a softmax, gradients added
to a buffer by a hook on every parameter. Full recomputation saves and restores the states of three random generators.
The device does so little for one short sequence that the wall clock shows the host. Hugging Face's eager Llama is
measured beside it, step by step in turns, because what a launch costs depends on the host and on who else uses it.

    python measure_host.py > host.json

Needs torch, transformers and one GPU. Prints one JSON object: seconds and kernels of a layer (forward pass,
recomputation and backward pass) for each variant.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, LAYERS, LENGTH, ROUNDS = 16, 12, 512, 60


class Shared(torch.autograd.Function):
    """Forward: as it is; backward: summed over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: bool) -> Tensor:
        ctx.ranks = ranks
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.ranks:
            dist.all_reduce(grad)
        return grad, None


class Summed(torch.autograd.Function):
    """Forward: summed over the tensor-parallel ranks; backward: as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: bool) -> Tensor:
        if ranks:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Linear(torch.autograd.Function):
    """A product with its own backward pass, as Megatron-LM has it to overlap and accumulate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        y = torch.matmul(x, weight.t())
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_input = grad.matmul(weight)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_weight = rows.t().matmul(x.reshape(-1, x.shape[-1]))
        return grad_input, grad_weight, rows.sum(0) if ctx.biased else None


class Norm(torch.autograd.Function):
    """Layer norm behind an autograd function of its own, as apex has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, 1e-5)
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, mean, rstd, weight, bias = ctx.saved_tensors
        return torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), x, weight.shape, mean, rstd, weight, bias, [True] * 3
        )


class Softmax(torch.autograd.Function):
    """One kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, y.dtype)


def bias_gelu(bias: Tensor, y: Tensor) -> Tensor:
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def bias_gelu_back(g: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    x = bias + y
    t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
    return (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)) * g


@dataclass(frozen=True)
class Fused:
    """Element-wise functions as one kernel each: compiled today, TorchScript's fuser in 2022."""

    bias_gelu: Callable[[Tensor, Tensor], Tensor]
    bias_gelu_back: Callable[[Tensor, Tensor, Tensor], Tensor]
    bias_dropout_add: Callable[[Tensor, Tensor, Tensor, float], Tensor]


class Gelu(torch.autograd.Function):
    """The activation with its bias, one kernel each way."""

    @staticmethod
    def forward(ctx: Any, fused: Fused, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.fused = fused
        return fused.bias_gelu(bias, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        back = ctx.fused.bias_gelu_back(grad, bias, x)
        return None, back, back


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, prob: float) -> Tensor:
    return residual + F.dropout(x + bias, p=prob, training=True)


class Generators:
    """States of random generators by name, one of them put in place while a block runs."""

    def __init__(self) -> None:
        self.states = {"model-parallel": torch.cuda.get_rng_state()}

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel") -> Iterator[None]:
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states[name])
        try:
            yield
        finally:
            self.states[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


class Checkpoint(torch.autograd.Function):
    """Runs a block again for its backward pass, with the random states that it had."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], generators: Generators | None, x: Tensor) -> Tensor:
        ctx.run, ctx.generators = run, generators
        ctx.states = generators and (torch.get_rng_state(), torch.cuda.get_rng_state(), dict(generators.states))
        with torch.no_grad():
            y = run(x)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None]:
        (x,) = ctx.saved_tensors
        generators = ctx.generators
        if generators:
            now = torch.get_rng_state(), torch.cuda.get_rng_state(), dict(generators.states)
            _restore(generators, ctx.states)
        x = x.detach()
        x.requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        if generators:
            _restore(generators, now)
        torch.autograd.backward(y, grad)
        return None, None, x.grad


def _restore(generators: Generators, states: tuple[Tensor, Tensor, dict[str, Tensor]]) -> None:
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state(states[1])
    generators.states = states[2]


class Column(nn.Module):
    """Weights split along the output."""

    def __init__(self, width: int, out: int, ranks: bool, *, adds_bias: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(out, width) * 0.02), nn.Parameter(torch.zeros(out))
        self.ranks, self.adds_bias = ranks, adds_bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = Shared.apply(x, self.ranks)
        return Linear.apply(x, self.weight, self.bias if self.adds_bias else None), self.bias


class Row(nn.Module):
    """Weights split along the input."""

    def __init__(self, width: int, out: int, ranks: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(out, width) * 0.02), nn.Parameter(torch.zeros(out))
        self.ranks = ranks

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return Summed.apply(Linear.apply(x, self.weight, None), self.ranks), self.bias


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return Norm.apply(x, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, width: int, ranks: bool, generators: Generators | None) -> None:
        super().__init__()
        self.qkv, self.dense = Column(width, 3 * width, ranks, adds_bias=True), Row(width, width, ranks)
        self.drop, self.generators = nn.Dropout(0.1), generators

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, _ = self.qkv(x)
        length, batch, width = x.shape
        size = width // HEADS
        mixed = mixed.view(length, batch, HEADS, 3 * size)
        q, k, v = torch.split(mixed, size, dim=-1)
        q, k = q.reshape(length, batch * HEADS, size), k.reshape(length, batch * HEADS, size)
        room = torch.empty(batch * HEADS, length, length, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(
            room, q.transpose(0, 1), k.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(size)
        )
        probs = Softmax.apply(scores.view(batch, HEADS, length, length))
        with self.generators.fork() if self.generators else contextlib.nullcontext():
            probs = self.drop(probs)
        v = v.reshape(length, batch * HEADS, size)
        context = torch.bmm(probs.view(batch * HEADS, length, length), v.transpose(0, 1))
        context = context.view(batch, HEADS, length, size).permute(2, 0, 1, 3).contiguous()
        return self.dense(context.view(length, batch, width))


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and before a dropout and an addition."""

    def __init__(self, width: int, ranks: bool, generators: Generators | None, fused: Fused) -> None:
        super().__init__()
        self.fused = fused
        self.norm, self.attention = LayerNorm(width), Attention(width, ranks, generators)
        self.norm2, self.up = LayerNorm(width), Column(width, 4 * width, ranks, adds_bias=False)
        self.down = Row(4 * width, width, ranks)

    def forward(self, x: Tensor) -> Tensor:
        out, bias = self.attention(self.norm(x))
        x = self.fused.bias_dropout_add(out, bias.expand_as(x), x, 0.1)
        y, bias = self.up(self.norm2(x))
        out, bias = self.down(Gelu.apply(self.fused, y, bias))
        return self.fused.bias_dropout_add(out, bias.expand_as(x), x, 0.1)


def add_to_buffer(parameter: nn.Parameter) -> None:
    """Add every gradient to a buffer at once, by a hook, as Megatron-LM's data parallelism does."""
    parameter.buffer = torch.zeros_like(parameter)

    def hook(param: Tensor) -> None:
        param.buffer.add_(param.grad)
        param.grad = None

    parameter.register_post_accumulate_grad_hook(hook)


def stack_step(
    width: int, fuse: Callable[..., Any], *, recompute: bool = True, states: bool = True, ranks: bool = False
) -> Callable[[], None]:
    """Forward and backward pass of the stack's layers; *fuse* makes one kernel of an element-wise function."""
    fused = Fused(fuse(bias_gelu), fuse(bias_gelu_back), fuse(bias_dropout_add))
    generators = Generators() if states else None
    with torch.device("cuda"):
        layers = nn.ModuleList(Layer(width, ranks, generators, fused) for _ in range(LAYERS)).half()
    for parameter in layers.parameters():
        add_to_buffer(parameter)
    x = torch.randn(LENGTH, 1, width, dtype=torch.half, device="cuda", requires_grad=True)

    def step() -> None:
        y = x
        for layer in layers:
            y = Checkpoint.apply(layer, generators, y) if recompute else layer(y)
        y.backward(torch.ones_like(y))

    return step


def framework_step(width: int) -> Callable[[], None]:
    """Forward and backward pass of as many of a framework's eager layers: Hugging Face's Llama."""
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).bfloat16()
    tokens = torch.randint(0, 1024, (1, LENGTH), device="cuda")

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None]) -> float:
    """Seconds of *step* on the wall clock."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def kernels_of(step: Callable[[], None]) -> dict[str, float]:
    """Kernels of *step* by name, a layer; memory that is set or copied is not among them."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        timed(step)
    counts: Counter[str] = Counter()
    for event in profile.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.key.startswith(("Mem", "nccl")):
            counts[event.key[:120]] += event.count / LAYERS
    return dict(counts.most_common())


def main() -> None:
    """Measure every variant, in turns: the host's other users slow all of them alike."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("nccl", rank=0, world_size=1)
    steps = {
        "framework": framework_step(512),
        "stack": stack_step(512, torch.compile),
        "stack, no recomputation": stack_step(512, torch.compile, recompute=False),
        "stack, no random states": stack_step(512, torch.compile, states=False),
        "stack, collectives": stack_step(512, torch.compile, ranks=True),
        "stack, TorchScript": stack_step(512, torch.jit.script),
        "stack, TorchScript, no recomputation": stack_step(512, torch.jit.script, recompute=False),
    }
    kernels = {}
    for name, step in steps.items():
        for _ in range(8):
            timed(step)
        kernels[name] = kernels_of(step)
    times = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(timed(step) / LAYERS)
    rows = [
        {
            "variant": name,
            "layer_s": statistics.median(times[name]),
            "layer_least_s": min(times[name]),
            "kernels_per_layer": sum(kernels[name].values()),
            "kernels": kernels[name],
        }
        for name in steps
    ]
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "cpu": next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), ""),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "script": "tests/validation/measure_host.py",
        "layers": LAYERS,
        "rows": rows,
    }
    json.dump(found, sys.stdout, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

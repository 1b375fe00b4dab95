"""KDA fused, as a chain of kernels, by small operators where they fit, and by a public package where it is there.

The package is Flash Linear Attention (`fla-core`, which needs einops). `kernels.benchmarks` runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from kernels import kda, kda_backward, kda_chain, kda_chain_backward
from kernels.reference import kda as plain_kda
from kernels.timing import Call, Row, differentiated, distance, drawn, errors, package, seconds

Function = Callable[..., torch.Tensor]


def heads(T: int, H: int, D: int = 128) -> list[torch.Tensor]:
    """(q, k, v, raw gate, raw beta, rate, bias) of KDA."""
    four = [drawn(T, H, D) for _ in range(4)]
    return [*four, drawn(T, H), torch.rand(H, device="cuda") + 0.5, drawn(H, D, dtype=torch.float32)]


def forward() -> Iterator[Row]:
    """KDA forward, its decode step, and the chain of small operators where it fits."""
    for lengths in ((1,), (64,), (200,), (3, 64, 130)):
        inputs, begin = heads(sum(lengths), 2), drawn(len(lengths), 2, 128, 128, dtype=torch.float32)
        found, wanted = (f(inputs, lengths, begin) for f in (kda.kda_forward, plain_kda.kda_recurrent))
        error = [distance(a, b) for a, b in zip(found, wanted, strict=True)]
        yield {"kernel": "kda forward", "shape": lengths, "errors": error}
    for T, H in ((1024, 96), (8192, 96), (32768, 96)):
        inputs = heads(T, H)
        row: Row = {"kernel": "kda forward", "shape": (T, H, 128), "bytes": 1282.0 * T * H, "flops": 169984.0 * T * H}
        row["fused_s"] = seconds(lambda inputs=inputs: kda.kda_forward(inputs))
        if T == 1024:
            row["plain_s"] = seconds(lambda inputs=inputs: plain_kda.kda_small_operators(inputs), 3)
        else:
            row["fused_8_sequences_s"] = seconds(lambda i=inputs, T=T: kda.kda_forward(i, (T // 8,) * 8))
        chunks = kda.checked(inputs, None, -5.0)
        row["prepare_s"] = seconds(lambda i=inputs, c=chunks: kda.prepare(i, c, -5.0))
        yield row
    for S in (1, 16, 128):
        inputs, state = heads(S, 96), drawn(S, 96, 128, 128, dtype=torch.float32)
        row = {"kernel": "kda decode", "shape": (S, 96, 128), "bytes": 131072.0 * S * 96 + 1282.0 * S * 96}
        wanted, final = plain_kda.kda_recurrent(inputs, (1,) * S, state)
        row["errors"] = [distance(kda.kda_decode(inputs, after := state.clone()), wanted), distance(after, final)]
        yield row | {"fused_s": seconds(lambda i=inputs, s=state: kda.kda_decode(i, s))}


def fused(*inputs: torch.Tensor, lengths: tuple[int, ...] | None = None) -> torch.Tensor:
    """Outputs of the fused kernels, differentiable."""
    return kda_backward.kda(inputs, lengths)[0]


def chained(*inputs: torch.Tensor, lengths: tuple[int, ...] | None = None) -> torch.Tensor:
    """Outputs of the chain, differentiable."""
    return kda_chain_backward.kda_chain(inputs, lengths)[0]


def recurrent(*inputs: torch.Tensor, lengths: tuple[int, ...] | None = None) -> torch.Tensor:
    """Outputs token by token."""
    return plain_kda.kda_recurrent(inputs, lengths)[0]


def _errors_by_lengths(kernel: str, function: Function) -> Iterator[Row]:
    """Errors of the outputs and of each gradient, of a whole chunk and of sequences of any length."""
    for lengths in ((64,), (3, 64, 130)):
        inputs, do = heads(sum(lengths), 2), drawn(sum(lengths), 2, 128)
        both = (partial(f, lengths=lengths) for f in (function, recurrent))
        yield {"kernel": kernel, "shape": lengths, "errors": errors(*both, inputs, do)}


def gradients() -> Iterator[Row]:
    """KDA forward and backward: the fused kernels, each alone, and small operators where they fit."""
    yield from _errors_by_lengths("kda backward", fused)
    for T, H in ((1024, 96), (8192, 96), (32768, 96)):
        inputs, do = heads(T, H), drawn(T, H, 128)
        chunks = kda.checked(inputs, None, -5.0)
        row: Row = {"kernel": "kda backward", "shape": (T, H, 128), "bytes": 2566.0 * T * H, "flops": 450560.0 * T * H}
        row["fused_s"] = seconds(
            lambda i=inputs, c=chunks, do=do: kda_backward.kda_backward(i, c, None, -5.0, do, None)
        )
        if T == 1024:
            plain = lambda *inputs: plain_kda.kda_small_operators(inputs)  # noqa: E731
            row["forward_and_backward_fused_s"] = seconds(differentiated(fused, inputs, do))
            row["forward_and_backward_plain_s"] = seconds(differentiated(plain, inputs, do), 3)
        yield row


def kernel_seconds(call: Call, repeats: int = 3) -> dict[str, float]:
    """Seconds of each kernel of one *call*, by the profiler."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    found = {event.key[:40]: event.device_time_total / repeats / 1e6 for event in profile.key_averages()}
    return {name: time for name, time in found.items() if time > 0}


def chain() -> Iterator[Row]:
    """Both passes of the chain, one sequence and eight, and each of its kernels; bytes are those of the launches."""
    yield from _errors_by_lengths("kda chain", chained)
    for T, H in ((1024, 96), (8192, 96), (32768, 96)):
        row: Row = {"kernel": "kda chain", "shape": (T, H, 128)}
        for label, lengths in (("", (T,)), ("_8_sequences", (T // 8,) * 8)):
            inputs, do = heads(T, H), drawn(T, H, 128)
            chunks = kda.checked(inputs, lengths, -5.0, kda_chain.CHUNK.value)
            kept = kda_chain.kda_chain_forward(inputs, lengths)[2]
            known = inputs, kept, chunks, None, -5.0, do, None
            passes: dict[str, Call] = {
                "forward": lambda i=inputs, n=lengths: kda_chain.kda_chain_forward(i, n),
                "backward": lambda k=known: kda_chain_backward.kda_chain_backward(*k),
            }
            for name, call in passes.items():
                row[f"{name}{label}_s"] = seconds(call, 5)
                row[f"{name}{label}_kernels_s"] = kernel_seconds(call)
        yield row


def _of_package(chunk_kda: Callable[..., tuple[torch.Tensor, object]]) -> Function:
    """The same function by Flash Linear Attention, with gates, steps and unit vectors taken in its kernels."""
    in_kernel = {f"use_{what}_in_kernel": True for what in ("qk_l2norm", "gate", "beta_sigmoid")}

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        *packed, rate, bias = inputs
        gate = {"A_log": rate.log(), "dt_bias": bias.view(-1), "safe_gate": True, "lower_bound": -5.0}
        return chunk_kda(*(x[None] for x in packed), **in_kernel, **gate)[0][0]

    return call


def beside_a_package() -> Iterator[Row]:
    """Both passes of KDA by the fused kernels, the chain and the package, which picks its tiles at the first call."""
    module, origin = package("fla-core", "fla.ops.kda")
    ways = {"fused": fused, "chain": chained} | ({"public": _of_package(module.chunk_kda)} if module else {})
    for T, H in ((8192, 96), (32768, 96), (130, 96)):
        inputs, do = heads(T, H), drawn(T, H, 128)
        row: Row = {"kernel": "kda beside a package", "shape": (T, H, 128)} | origin
        for name, function in ways.items():
            if T == 130:
                row[f"{name}_errors"] = errors(function, recurrent, inputs, do)
            else:
                row[f"{name}_forward_s"] = seconds(partial(function, *inputs))
                row[f"{name}_forward_and_backward_s"] = seconds(differentiated(function, inputs, do))
        yield row

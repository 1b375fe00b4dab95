"""KDA three ways: fused, as a chain of kernels, and by small operators where they fit. `kernels.benchmarks` runs it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels import kda, kda_backward, kda_chain, kda_chain_backward
from kernels.reference import kda as plain_kda
from kernels.timing import Call, Row, differentiated, distance, drawn, errors, seconds


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


def gradients() -> Iterator[Row]:
    """KDA forward and backward: the fused kernels, each alone, and small operators where they fit."""
    for lengths in ((64,), (3, 64, 130)):
        inputs, gradient = heads(sum(lengths), 2), drawn(sum(lengths), 2, 128)
        fused, plain = (
            lambda *inputs, f=f, lengths=lengths: f(inputs, lengths)[0]
            for f in (kda_backward.kda, plain_kda.kda_recurrent)
        )
        yield {"kernel": "kda backward", "shape": lengths, "errors": errors(fused, plain, inputs, gradient)}
    for T, H in ((1024, 96), (8192, 96), (32768, 96)):
        inputs, do = heads(T, H), drawn(T, H, 128)
        chunks = kda.checked(inputs, None, -5.0)
        row: Row = {"kernel": "kda backward", "shape": (T, H, 128), "bytes": 2566.0 * T * H, "flops": 450560.0 * T * H}
        row["fused_s"] = seconds(
            lambda i=inputs, c=chunks, do=do: kda_backward.kda_backward(i, c, None, -5.0, do, None)
        )
        if T == 1024:
            fused, plain = (
                lambda *inputs: kda_backward.kda(inputs)[0],
                lambda *inputs: plain_kda.kda_small_operators(inputs),
            )
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
    for lengths in ((64,), (3, 64, 130)):
        inputs, gradient = heads(sum(lengths), 2), drawn(sum(lengths), 2, 128)
        cut, plain = (
            lambda *inputs, f=f, lengths=lengths: f(inputs, lengths)[0]
            for f in (kda_chain_backward.kda_chain, plain_kda.kda_recurrent)
        )
        yield {"kernel": "kda chain", "shape": lengths, "errors": errors(cut, plain, inputs, gradient)}
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

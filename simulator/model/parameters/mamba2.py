"""Parameters and state of a Mamba-2 mixer (Nemotron-H's layout)."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import Mamba2
from simulator.model.cache import BF16_BYTES, FP32_BYTES, Cache
from simulator.model.parameter import Parameter, linear, norm


def parameters(mixer: Mamba2, hidden: int) -> Iterator[Parameter]:
    """One input projection (gate, x, B, C, dt), convolution, decay, skip, gated norm, output; *hidden* wide."""
    inner = mixer.heads * mixer.head_dim
    yield from linear("mixer.in_proj", inner + _channels(mixer) + mixer.heads, hidden, "attention")
    yield Parameter("mixer.conv1d.weight", (_channels(mixer), 1, mixer.conv_kernel), "attention")
    if mixer.conv_bias:
        yield Parameter("mixer.conv1d.bias", (_channels(mixer),), "attention")
    for name in ("dt_bias", "A_log", "D"):
        yield Parameter(f"mixer.{name}", (mixer.heads,), "attention")
    yield from norm("mixer.norm", inner)
    yield from linear("mixer.out_proj", hidden, inner, "attention")


def _channels(mixer: Mamba2) -> int:
    """Channels of the convolution: x, and B and C of each group."""
    return mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state


def cache(mixer: Mamba2) -> Cache:
    """A fp32 state a head and the last inputs of the convolution; nothing grows with length."""
    state_bytes = mixer.heads * mixer.head_dim * mixer.state * FP32_BYTES
    return Cache(bytes_per_sequence=state_bytes + _channels(mixer) * (mixer.conv_kernel - 1) * BF16_BYTES)

"""Parameters and state of Kimi Delta Attention; shapes and types as Kimi-K3's checkpoint lists them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import KimiDeltaAttention
from simulator.model.cache import BF16_BYTES, FP32_BYTES, Cache
from simulator.model.parameter import Parameter, linear


def parameters(mixer: KimiDeltaAttention, hidden: int) -> Iterator[Parameter]:
    """Projections, depthwise convolutions, decay, beta and output gate, for a model *hidden* wide."""
    width = mixer.heads * mixer.head_dim
    for name in ("q", "k", "v"):
        yield from linear(f"self_attn.{name}_proj", width, hidden, "attention")
    for name in ("q", "k", "v"):
        yield Parameter(f"self_attn.{name}_conv1d.weight", (width, 1, mixer.conv_kernel), "attention", dtype="fp32")
    yield from linear("self_attn.f_a_proj", mixer.decay_rank, hidden, "attention")
    yield from linear("self_attn.f_b_proj", width, mixer.decay_rank, "attention")
    yield Parameter("self_attn.dt_bias", (width,), "attention", dtype="fp32")
    yield Parameter("self_attn.A_log", (mixer.decay_parameters,), "attention", dtype="fp32")
    yield from linear("self_attn.b_proj", mixer.heads, hidden, "attention")
    if mixer.full_rank_gate:
        yield from linear("self_attn.g_proj", width, hidden, "attention")
    else:
        yield from linear("self_attn.g_a_proj", mixer.head_dim, hidden, "attention")
        yield from linear("self_attn.g_b_proj", width, mixer.head_dim, "attention")
    yield Parameter("self_attn.o_norm.weight", (mixer.head_dim,), "norm", dtype="fp32")
    yield from linear("self_attn.o_proj", hidden, width, "attention")


def cache(mixer: KimiDeltaAttention) -> Cache:
    """A fp32 matrix a head and the last inputs of three convolutions; nothing grows with length."""
    state_bytes = mixer.heads * mixer.head_dim**2 * FP32_BYTES
    conv_bytes = 3 * mixer.heads * mixer.head_dim * (mixer.conv_kernel - 1) * BF16_BYTES
    return Cache(bytes_per_sequence=state_bytes + conv_bytes)

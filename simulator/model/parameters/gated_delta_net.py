"""Parameters and state of a gated delta net (Qwen3.5's layout; Qwen3-Next fuses the same matrices)."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import GatedDeltaNet
from simulator.model.cache import BF16_BYTES, FP32_BYTES, Cache
from simulator.model.parameter import Parameter, linear, norm


def parameters(mixer: GatedDeltaNet, hidden: int) -> Iterator[Parameter]:
    """Projections of q, k and v together, of the gate z, of beta and decay; convolution; output; *hidden* wide."""
    k_width, v_width = mixer.k_heads * mixer.k_dim, mixer.v_heads * mixer.v_dim
    mixed = 2 * k_width + v_width
    yield from linear("linear_attn.in_proj_qkv", mixed, hidden, "attention")
    yield from linear("linear_attn.in_proj_z", v_width, hidden, "attention")
    yield from linear("linear_attn.in_proj_b", mixer.v_heads, hidden, "attention")
    yield from linear("linear_attn.in_proj_a", mixer.v_heads, hidden, "attention")
    yield Parameter("linear_attn.conv1d.weight", (mixed, 1, mixer.conv_kernel), "attention")
    yield Parameter("linear_attn.dt_bias", (mixer.v_heads,), "attention")
    yield Parameter("linear_attn.A_log", (mixer.v_heads,), "attention")
    yield from norm("linear_attn.norm", mixer.v_dim)
    yield from linear("linear_attn.out_proj", hidden, v_width, "attention")


def cache(mixer: GatedDeltaNet) -> Cache:
    """A fp32 matrix a value head and the last inputs of the convolution; nothing grows with length."""
    state_bytes = mixer.v_heads * mixer.k_dim * mixer.v_dim * FP32_BYTES
    channels = 2 * mixer.k_heads * mixer.k_dim + mixer.v_heads * mixer.v_dim
    return Cache(bytes_per_sequence=state_bytes + channels * (mixer.conv_kernel - 1) * BF16_BYTES)

"""Parameters and cache of softmax attention with grouped key-value heads."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import GroupedAttention
from simulator.model.cache import BF16_BYTES, Cache
from simulator.model.parameter import Parameter, linear, norm


def parameters(mixer: GroupedAttention, hidden: int) -> Iterator[Parameter]:
    """q, k, v and o projections with their biases, the norms of q and k, and the sinks, for a model *hidden* wide."""
    q_dim, kv_dim = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
    q_out = 2 * q_dim if mixer.output_gate else q_dim
    yield from linear("self_attn.q_proj", q_out, hidden, "attention", bias=mixer.qkv_bias)
    yield from linear("self_attn.k_proj", kv_dim, hidden, "attention", bias=mixer.qkv_bias)
    yield from linear("self_attn.v_proj", kv_dim, hidden, "attention", bias=mixer.qkv_bias)
    yield from linear("self_attn.o_proj", hidden, q_dim, "attention", bias=mixer.output_bias)
    if mixer.qk_norm != "none":
        per_head = mixer.qk_norm == "head"
        yield from norm("self_attn.q_norm", mixer.head_dim if per_head else q_dim)
        yield from norm("self_attn.k_norm", mixer.head_dim if per_head else kv_dim)
    if mixer.sinks:
        yield Parameter("self_attn.sinks", (mixer.heads,), "attention")


def cache(mixer: GroupedAttention) -> Cache:
    """Keys and values of all tokens, or of one window or chunk."""
    token_bytes = 2 * mixer.kv_heads * mixer.head_dim * BF16_BYTES
    kept = mixer.window or mixer.chunk
    return Cache(bytes_per_sequence=kept * token_bytes) if kept else Cache(kv_bytes_per_token=token_bytes)

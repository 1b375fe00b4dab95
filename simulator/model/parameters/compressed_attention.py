"""Parameters and cache of attention over compressed keys, as DeepSeek-V4's model code shapes them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import CompressedAttention
from simulator.model.cache import BF16_BYTES, INDEX_SCALE_BYTES, Cache
from simulator.model.parameter import Parameter, Role, linear, norm

_OVERLAPPING_RATIO = 4
"""At this ratio neighbouring windows overlap, and the compressor is twice as wide."""


def parameters(mixer: CompressedAttention, hidden: int) -> Iterator[Parameter]:
    """Low-rank q, one key-value head, grouped low-rank output, sinks, compressor, indexer; *hidden* wide."""
    q_dim = mixer.heads * mixer.head_dim
    yield from linear("self_attn.q_a_proj", mixer.q_lora_rank, hidden, "attention")
    yield from norm("self_attn.q_a_norm", mixer.q_lora_rank)
    yield from linear("self_attn.q_b_proj", q_dim, mixer.q_lora_rank, "attention")
    yield from linear("self_attn.kv_proj", mixer.head_dim, hidden, "attention")
    yield from norm("self_attn.kv_norm", mixer.head_dim)
    low_rank = mixer.output_groups * mixer.output_rank
    yield from linear("self_attn.o_a_proj", low_rank, q_dim // mixer.output_groups, "attention")
    yield from linear("self_attn.o_b_proj", hidden, low_rank, "attention")
    yield Parameter("self_attn.sinks", (mixer.heads,), "attention", dtype="fp32")
    if mixer.compress_ratio:
        yield from _compressor(mixer, "self_attn.compressor", mixer.head_dim, hidden)
    if mixer.indexer is not None:
        indexer = mixer.indexer
        yield from linear("self_attn.indexer.q_b_proj", indexer.heads * indexer.head_dim, mixer.q_lora_rank, "indexer")
        yield from linear("self_attn.indexer.weights_proj", indexer.heads, hidden, "indexer")
        yield from _compressor(mixer, "self_attn.indexer.compressor", indexer.head_dim, hidden)


def _compressor(mixer: CompressedAttention, name: str, head_dim: int, hidden: int) -> Iterator[Parameter]:
    width = 2 * head_dim if mixer.compress_ratio == _OVERLAPPING_RATIO else head_dim
    role: Role = "indexer" if "indexer" in name else "attention"
    yield from linear(f"{name}.kv_proj", width, hidden, role)
    yield from linear(f"{name}.gate_proj", width, hidden, role)
    yield Parameter(f"{name}.position_bias", (mixer.compress_ratio, width), role, dtype="fp32")
    yield from norm(f"{name}.kv_norm", head_dim, role)


def cache(mixer: CompressedAttention) -> Cache:
    """The window's keys, and one compressed key (value and key are one) for each *compress_ratio* tokens."""
    key_bytes = mixer.head_dim * BF16_BYTES
    window_bytes = mixer.window * key_bytes
    if not mixer.compress_ratio:
        return Cache(bytes_per_sequence=window_bytes)
    index_bytes = mixer.indexer.head_dim + INDEX_SCALE_BYTES if mixer.indexer is not None else 0
    return Cache(key_bytes / mixer.compress_ratio, index_bytes / mixer.compress_ratio, window_bytes)

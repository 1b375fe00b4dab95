"""Parameters and cache of grouped attention to the best-scored blocks of keys."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import BlockSparseAttention
from simulator.model.cache import BF16_BYTES, Cache
from simulator.model.parameter import Parameter, linear
from simulator.model.parameters import grouped_attention


def parameters(mixer: BlockSparseAttention, hidden: int) -> Iterator[Parameter]:
    """Those of the grouped attention, and the projections of the index queries and of one index key."""
    yield from grouped_attention.parameters(mixer.attention, hidden)
    yield from linear("self_attn.index_q_proj", mixer.index_heads * mixer.index_dim, hidden, "indexer")
    yield from linear("self_attn.index_k_proj", mixer.index_dim, hidden, "indexer")


def cache(mixer: BlockSparseAttention) -> Cache:
    """All keys and values, and one index key a token in bf16."""
    return grouped_attention.cache(mixer.attention) + Cache(index_bytes_per_token=mixer.index_dim * BF16_BYTES)

"""Parameters and cache of multi-head latent attention, with the lightning indexer where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import Indexer, LatentAttention
from simulator.model.cache import BF16_BYTES, INDEX_SCALE_BYTES, Cache
from simulator.model.parameter import Parameter, linear, norm


def parameters(mixer: LatentAttention, hidden: int) -> Iterator[Parameter]:
    """Low-rank q and kv projections and their norms, output projection, gate, indexer, for a model *hidden* wide."""
    q_dim, o_dim = mixer.heads * (mixer.nope_dim + mixer.rope_dim), mixer.heads * mixer.v_dim
    if mixer.q_lora_rank is None:
        yield from linear("self_attn.q_proj", q_dim, hidden, "attention")
    else:
        yield from linear("self_attn.q_a_proj", mixer.q_lora_rank, hidden, "attention")
        yield from norm("self_attn.q_a_layernorm", mixer.q_lora_rank)
        yield from linear("self_attn.q_b_proj", q_dim, mixer.q_lora_rank, "attention")
    kv_dim = mixer.heads * (mixer.nope_dim + mixer.v_dim)
    yield from linear("self_attn.kv_a_proj_with_mqa", mixer.kv_lora_rank + mixer.rope_dim, hidden, "attention")
    yield from norm("self_attn.kv_a_layernorm", mixer.kv_lora_rank)
    yield from linear("self_attn.kv_b_proj", kv_dim, mixer.kv_lora_rank, "attention")
    if mixer.output_gate:
        yield from linear("self_attn.g_proj", o_dim, hidden, "attention")
    yield from linear("self_attn.o_proj", hidden, o_dim, "attention")
    if mixer.indexer is not None and not mixer.indexer.shared:
        yield from _indexer(mixer.indexer, hidden, mixer.q_lora_rank or hidden)


def _indexer(indexer: Indexer, hidden: int, query_input: int) -> Iterator[Parameter]:
    """DeepSeek-V3.2's layout: queries from the latent query, one key head with a LayerNorm, one weight a head."""
    yield from linear("self_attn.indexer.wq_b", indexer.heads * indexer.head_dim, query_input, "indexer")
    yield from linear("self_attn.indexer.wk", indexer.head_dim, hidden, "indexer")
    yield from norm("self_attn.indexer.k_norm", indexer.head_dim, "indexer", bias=True)
    yield from linear("self_attn.indexer.weights_proj", indexer.heads, hidden, "indexer")


def cache(mixer: LatentAttention) -> Cache:
    """One latent and one rotated key a token, and one fp8 key with its scale where an indexer of its own runs."""
    indexer = mixer.indexer
    index_bytes = indexer.head_dim + INDEX_SCALE_BYTES if indexer is not None and not indexer.shared else 0
    return Cache((mixer.kv_lora_rank + mixer.rope_dim) * BF16_BYTES, index_bytes)

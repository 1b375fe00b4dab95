"""Latent attention over a cache of latents: prompts decompress them, decoding sequences work on them as they are.

A prompt's chunk expands its own latents and those of the tokens before it to keys and values of every head, as vLLM
and SGLang do, and runs ordinary attention. Decoding, the halves of kv_b move to the queries and the results
("absorbed"), and one latent of c + r elements is key and value of all heads: 2 H (2 c + r) FLOPs for 2 (c + r) bytes,
so that with 128 heads arithmetic binds (models_and_formulas section 3.5).

With an indexer every query, of prompts too, reads its best *top_k* latents in absorbed form; the indexer scores all
keys before it, which it reads from its own cache (section 3.7). Keys that decoding sequences choose have no reader
beside them: each query brings its own from memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.architecture import Indexer, LatentAttention
from simulator.model.cache import INDEX_SCALE_BYTES
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.attention_core import AttentionShape
from simulator.model.operators.gemm import batched_linear, linear
from simulator.model.operators.indexer import index_choice, index_scores
from simulator.model.operators.lane import Lane, pointwise, token_lane
from simulator.model.operators.sparse_attention import LATENT_OUTPUT, SparseShape, sparse_attention
from simulator.model.serving.formats import CacheFormat
from simulator.model.serving.grouped_attention import prefill_attention
from simulator.model.serving.held import cache_need
from simulator.model.serving.iteration import Iteration

REPLACED = frozenset(
    {"kv_b_proj", "join_keys", "attention", "index_scores", "index_topk", "absorb_keys", "sparse_attention",
     "absorb_values"}
)  # fmt: skip
_KV_B = ("self_attn.kv_b_proj.weight",)


def cached(
    component: LatentAttention, hidden: int, workload: Workload, iteration: Iteration, cache: CacheFormat
) -> Iterator[Operator]:
    """From the latents to the core's output."""
    del hidden
    lane, token_bytes = token_lane(workload), cache_need(replace(component, indexer=None), cache).token_bytes
    if component.indexer is not None:
        token_bytes = cache_need(component, cache).token_bytes - _index_bytes(component.indexer)
    written = iteration.tokens * ((component.kv_lora_rank + component.rope_dim) * lane.element_bytes + token_bytes)
    yield Operator("write_cache", (pointwise(written, kind="scatter_put"),))
    if component.indexer is not None:
        yield from _sparse(component, component.indexer, workload, iteration, token_bytes)
        return
    if iteration.prefill:
        yield from _decompressed(component, lane, iteration, token_bytes)
    if iteration.decode_contexts:
        yield from _absorbed(component, lane, iteration.decode_contexts, token_bytes)


def _decompressed(
    component: LatentAttention, lane: Lane, iteration: Iteration, token_bytes: float
) -> Iterator[Operator]:
    """Keys and values of all tokens that the chunks see, and attention over them."""
    heads, earlier = component.heads, sum(chunk.cached_tokens for chunk in iteration.prefill)
    seen = replace(lane, count=iteration.prefill_tokens + earlier)
    if earlier:
        moved = earlier * (token_bytes + lane.element_bytes * (component.kv_lora_rank + component.rope_dim))
        yield Operator("read_cache", (pointwise(moved, kind="gather"),))
    width = heads * (component.nope_dim + component.v_dim)
    yield linear(seen, "kv_b_proj", "key_latent_normed", component.kv_lora_rank, width, _KV_B)
    nope, key = heads * component.nope_dim, heads * (component.nope_dim + component.rope_dim)
    yield Operator("join_keys", (pointwise(seen.tensor_bytes(nope + component.rope_dim + key), kind="copy"),))
    shape = AttentionShape(heads, heads, component.nope_dim + component.rope_dim, component.v_dim)
    read = float(earlier * (shape.key + shape.value) * lane.element_bytes)
    yield prefill_attention(iteration, shape, [chunk.pairs for chunk in iteration.prefill], read)


def _absorbed(
    component: LatentAttention, lane: Lane, contexts: tuple[int, ...], token_bytes: float
) -> Iterator[Operator]:
    rows, latent = replace(lane, count=len(contexts)), component.kv_lora_rank
    heads, width = component.heads, latent + component.rope_dim
    yield batched_linear(rows, "absorb_keys", "query_nope", heads, component.nope_dim, latent, _KV_B)
    kernel = Kernel(
        "decode_latent",
        2.0 * heads * (width + latent) * sum(contexts),
        token_bytes * sum(contexts) + rows.tensor_bytes(heads * (width + latent)),
        (heads, width, max(1, sum(contexts) // len(contexts))),
    )
    yield Operator("decode_attention", (kernel,), output_bytes=rows.tensor_bytes(heads * latent))
    yield batched_linear(rows, "absorb_values", LATENT_OUTPUT, heads, latent, component.v_dim, _KV_B)


def _sparse(
    component: LatentAttention, indexer: Indexer, workload: Workload, iteration: Iteration, token_bytes: float
) -> Iterator[Operator]:
    lane, latent = token_lane(workload), component.kv_lora_rank
    if not indexer.shared:
        yield from _index(indexer, workload, iteration)
    yield batched_linear(lane, "absorb_keys", "query_nope", component.heads, component.nope_dim, latent, _KV_B)
    shape = SparseShape(component.heads, latent + component.rope_dim, latent, indexer.top_k)
    for tokens, apart in ((iteration.prefill_tokens, False), (len(iteration.decode_contexts), True)):
        if tokens:
            core = sparse_attention(replace(lane, count=tokens), workload, shape, keeps_choice=False)
            kernel = core.forward[0]
            if apart:
                kernel = replace(kernel, bytes=kernel.bytes + tokens * indexer.top_k * token_bytes)
            yield Operator(core.name, (kernel,), output_bytes=core.output_bytes)
    yield batched_linear(lane, "absorb_values", LATENT_OUTPUT, component.heads, latent, component.v_dim, _KV_B)


def _index(indexer: Indexer, workload: Workload, iteration: Iteration) -> Iterator[Operator]:
    """Scores of all keys before each query and the choice among them; cached keys are read once a sequence."""
    lane = token_lane(workload)
    pairs = float(sum(chunk.pairs for chunk in iteration.prefill) + sum(iteration.decode_contexts))
    cached_keys = sum(chunk.cached_tokens for chunk in iteration.prefill) + sum(iteration.decode_contexts)
    scores = index_scores(indexer, workload, lane, pairs)
    kernel = scores.forward[0]
    length = max(1, round(pairs / lane.count))
    read = kernel.bytes + cached_keys * _index_bytes(indexer)
    yield replace(scores, forward=(replace(kernel, bytes=read, shape=(*kernel.shape[:2], length)),))
    yield index_choice(indexer, lane, pairs)


def _index_bytes(indexer: Indexer) -> float:
    return 0.0 if indexer.shared else float(indexer.head_dim + INDEX_SCALE_BYTES)

"""Sparse attention beside small operators and beside dense attention: what `kernels.benchmarks` runs of it.

Sizes are those of Kimi K3.1: 32 indexer heads of 128, 2,048 keys of 512 + 64 channels for 96 heads of attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import indexer, indexer_stored, sparse_attention, sparse_attention_backward, topk
from kernels.reference import indexer as plain_indexer
from kernels.reference import sparse_attention as plain_sparse
from kernels.timing import Row, differentiated, drawn, errors, seconds

TOP, INDEX_HEADS, INDEX_WIDTH = 2048, 32, 128
HEADS, LATENT, ROPE, NOPE, VALUE = 96, 512, 64, 128, 128
SCALE = (NOPE + ROPE) ** -0.5
REPEATS = 3


def index_inputs(T: int, S: int, heads: int = INDEX_HEADS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(queries, keys, weights) of the indexer."""
    return drawn(T, heads, INDEX_WIDTH), drawn(S, INDEX_WIDTH), torch.rand(T, heads, device="cuda")


def in_fp8(
    q_THD: torch.Tensor, k_SD: torch.Tensor, weight_TH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Arguments of `choose_keys` with both operands in fp8."""
    (q8, q_scale), (k8, k_scale) = indexer.rounded_to_fp8(q_THD), indexer.rounded_to_fp8(k_SD)
    return q8, k8, weight_TH * q_scale, TOP, k_scale


def alike(found: torch.Tensor, wanted: torch.Tensor, keys: int) -> float:
    """Share of the wanted keys that were found."""
    marks = torch.zeros(len(found), keys + 1, dtype=torch.bool, device=found.device)
    marks.scatter_(1, found.long() % (keys + 1), value=True)
    there = marks.gather(1, wanted.long() % (keys + 1)) & (wanted >= 0)
    return float(there.sum() / (wanted >= 0).sum())


def pairs(T: int, S: int) -> float:
    """Pairs of a query and a key that it sees, when the queries are the last of the keys."""
    return T * (S - T) + T * (T + 1) / 2


def indexers() -> Iterator[Row]:
    """Keys chosen as by small operators, and times by context."""
    for T, S in ((300, 5000), (8192, 8192), (8192, 32768), (1024, 131072), (8192, 131072)):
        q, k, weight = index_inputs(T, S)
        eight = in_fp8(q, k, weight)
        row: Row = {"kernel": "indexer", "shape": (T, S), "flops": 2.0 * INDEX_HEADS * INDEX_WIDTH * pairs(T, S)}
        if T == 300:
            wanted = plain_indexer.choose_keys(q.float(), k.float(), weight, TOP)
            found = indexer.choose_keys(q, k, weight, TOP), indexer.choose_keys(*eight)
            row["keys_alike"], row["keys_alike_fp8"] = (alike(x, wanted, S) for x in found)
            row["chosen_twice"] = int(sum((x.sort(1).values.diff(dim=1) == 0).sum() for x in found))
        else:
            row["bf16_s"] = seconds(lambda q=q, k=k, w=weight: indexer.choose_keys(q, k, w, TOP), 5)
            row["fp8_s"] = seconds(lambda e=eight: indexer.choose_keys(*e), 5)
        if T > 300 and (T, S) != (8192, 131072):
            row["plain_s"] = seconds(lambda q=q, k=k, w=weight: plain_indexer.choose_keys(q, k, w, TOP), 2)
        yield row


def more_heads(heads: int = 64) -> Iterator[Row]:
    """Times of an indexer of more heads, as DeepSeek-V3.2 has."""
    for T, S in ((8192, 8192), (8192, 32768), (8192, 131072)):
        q, k, weight = index_inputs(T, S, heads)
        row: Row = {
            "kernel": f"indexer, {heads} heads",
            "shape": (T, S),
            "flops": 2.0 * heads * INDEX_WIDTH * pairs(T, S),
        }
        eight = in_fp8(q, k, weight)
        row["bf16_s"] = seconds(lambda q=q, k=k, w=weight: indexer.choose_keys(q, k, w, TOP), 5)
        yield row | {"fp8_s": seconds(lambda e=eight: indexer.choose_keys(*e), 5)}


def given_scores() -> Iterator[Row]:
    """The best of given scores beside torch.topk: of many rows and of few; then an indexer made of it."""
    for S, dtype in product((8192, 32768, 131072), (torch.float32, torch.bfloat16)):
        yield _chosen(8192, S, dtype)
    for T, S in product((1, 16, 64), (4096, 8192, 32768, 131072)):
        yield _chosen(T, S, torch.float32)
    for past, kind in product((0, 8192, 32768, 131072), ("normal", "equal", "rising")):
        yield _chosen_of_seen(8192, past, kind)
    yield from _stored_scores()


def _chosen(T: int, S: int, dtype: torch.dtype) -> Row:
    """Rows of random scores, whether the best of some of them are those of torch.topk, and times."""
    score = drawn(T, S, dtype=dtype)
    row: Row = {"kernel": "topk", "shape": (T, S), "type": str(dtype), "bytes": float(score.nbytes)}
    some = score[:1024]
    found, wanted = some.gather(1, topk.best(some, TOP).long()), some.topk(TOP, dim=1).values
    row["values_alike"] = found.sort(1, descending=True).values.equal(wanted)
    row["fused_s"] = seconds(lambda: topk.best(score, TOP), 5)
    return row | {"plain_s": seconds(lambda: score.topk(TOP, dim=1, sorted=False), 2)}


def _chosen_of_seen(T: int, past: int, kind: str) -> Row:
    """Rows of one score more each, as of the last queries of a sequence: random, all equal, or rising with the key."""
    score = drawn(T, past + T, dtype=torch.float32)
    if kind != "normal":
        score.copy_(torch.ones_like(score) if kind == "equal" else torch.arange(past + T, device="cuda").expand(T, -1))
    row: Row = {"kernel": f"topk of seen keys, {kind} scores", "shape": (T, past + T), "bytes": 4 * pairs(T, past + T)}
    return row | {"fused_s": seconds(lambda: topk.best(score, TOP, past), 3)}


def _stored_scores() -> Iterator[Row]:
    """The indexer that stores its scores, beside the one that does not; and its scores alone, of one batch."""
    ways = {"stored": indexer_stored.choose_keys, "fused": indexer.choose_keys}
    for T, S in ((300, 5000), (8192, 8192), (8192, 32768), (8192, 131072)):
        q, k, weight = index_inputs(T, S)
        q8, k8, weight8, _, k_scale = eight = in_fp8(q, k, weight)
        row: Row = {"kernel": "indexer, scores stored", "shape": (T, S)}
        if T == 300:
            yield row | {"keys_alike_fp8": alike(*(way(*eight).long() for way in ways.values()), S)}
            continue
        for name, choose in ways.items():
            row[f"{name}_bf16_s"] = seconds(lambda c=choose, q=q, k=k, w=weight: c(q, k, w, TOP), 3)
            row[f"{name}_fp8_s"] = seconds(lambda c=choose, e=eight: c(*e), 3)
        rows = min(T, indexer_stored.SCORES_BYTES // (4 * S))
        row["scores_alone_rows"], row["scores_alone_flops"] = rows, 2.0 * INDEX_HEADS * INDEX_WIDTH * pairs(rows, S)
        last = q8[-rows:], k8, weight8[-rows:], S - rows, indexer.tiling(q8, k8, TOP), k_scale
        yield row | {"scores_alone_fp8_s": seconds(lambda a=last: indexer_stored.stored_scores(*a), 3)}


def attention_inputs(T: int, S: int, top: int = TOP, heads: int = HEADS) -> tuple[list[torch.Tensor], torch.Tensor]:
    """([queries, keys], chosen keys), drawn without regard to order."""
    index = torch.randint(S, (T, top), device="cuda", dtype=torch.int32)
    return [drawn(T, heads, LATENT + ROPE), drawn(S, LATENT + ROPE)], index


def sparse() -> Iterator[Row]:
    """Sparse attention, forward and backward, beside small operators where they fit."""
    for shape in ((37, 3000, 256), (1024, 8192, TOP), (8192, 8192, TOP), (8192, 65536, TOP)):
        yield _attention("sparse attention", *shape, HEADS)


def sparse_heads() -> Iterator[Row]:
    """The same of other heads: a half and a quarter of DeepSeek-V3.2's 128, and all of them."""
    for heads in (32, 64, 128):
        for shape in ((37, 3000, 256), (8192, 8192, TOP)):
            yield _attention(f"sparse attention, {heads} heads", *shape, heads)


def _attention(name: str, T: int, S: int, top: int, heads: int) -> Row:
    """Errors of few queries; of 1,024 the times beside those of small operators, of more the times."""
    inputs, index = attention_inputs(T, S, top, heads)
    fused = lambda q, kv: sparse_attention_backward.sparse_attention(q, kv, index, LATENT, SCALE)  # noqa: E731
    plain = lambda q, kv: plain_sparse.sparse_attention(q, kv, index, LATENT, SCALE)  # noqa: E731
    work = 2.0 * T * top * heads
    row: Row = {"kernel": name, "shape": (T, S, top)}
    if T == 37:
        return row | {"errors": errors(fused, plain, inputs, drawn(T, heads, LATENT))}
    row["flops"], row["backward_flops"] = work * (2 * LATENT + ROPE), work * (5 * LATENT + 3 * ROPE)
    row["fused_s"] = seconds(lambda: fused(*inputs), 5)
    o, lse = sparse_attention.sparse_forward(*inputs, index, LATENT, SCALE)
    do = torch.randn_like(o)
    known = (*inputs, index, o, lse, do, SCALE)
    row["backward_fused_s"] = seconds(lambda: sparse_attention_backward.gradients(*known), 4)
    if T == 1024:
        row["plain_s"] = seconds(lambda: plain(*inputs), 3)
        row["forward_and_backward_fused_s"] = seconds(differentiated(fused, inputs, do), 3)
        row["forward_and_backward_plain_s"] = seconds(differentiated(plain, inputs, do), 3)
    return row


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of ordinary heads, by the vendor's kernel."""
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)


def _dense_times(L: int) -> Row:
    q, k = (drawn(1, HEADS, L, NOPE + ROPE) for _ in range(2))
    v = drawn(1, HEADS, L, VALUE)
    whole = differentiated(dense, [q, k, v], torch.randn_like(v))
    return {
        "dense_s": seconds(lambda: dense(q, k, v), REPEATS),
        "dense_forward_and_backward_s": seconds(whole, REPEATS),
    }


def _sparse_times(L: int) -> Row:
    three = index_inputs(L, L)
    row: Row = {"indexer_bf16_s": seconds(lambda: indexer.choose_keys(*three, TOP), REPEATS)}
    eight = in_fp8(*three)
    row["indexer_fp8_s"] = seconds(lambda: indexer.choose_keys(*eight), REPEATS)
    index = indexer.choose_keys(*eight)
    (q, kv), _ = attention_inputs(L, L, 1)
    row["sparse_s"] = seconds(lambda: sparse_attention.sparse_forward(q, kv, index, LATENT, SCALE), REPEATS)
    o, lse = sparse_attention.sparse_forward(q, kv, index, LATENT, SCALE)
    known = (q, kv, index, o, lse, torch.randn_like(o), SCALE)
    return row | {"sparse_backward_s": seconds(lambda: sparse_attention_backward.gradients(*known), REPEATS)}


def break_even() -> Iterator[Row]:
    """One sequence of each length: dense attention of heads of 192 and 128, and what sparse attention does instead."""
    for L in (4096, 8192, 16384, 32768, 65536):
        yield {"kernel": "dense and sparse", "shape": (L,)} | _dense_times(L) | _sparse_times(L)

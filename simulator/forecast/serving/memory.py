"""Memory of an accelerator that serves: what it holds all the time, its caches at their fullest, and whether that fits.

"Tight" is a loop in which sequences waited for room, or were sent back to make room for others.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from simulator.forecast.serving.loop import Course
from simulator.forecast.serving.pool import Pool
from simulator.forecast.serving.requests import Request
from simulator.program.drives import DRIVE_TIER
from simulator.program.host_memory import HOST_TIER

NAMES = ("decode", "prefill")
"""Pools in their order."""


def serving_memory(pools: Many[Pool], wanted: Many[Request], course: Course | None) -> dict[str, Any]:
    """The keys fits, verdict and memory, of the pool that decodes, or does all; prefill_memory of the other one.

    Without a *course*, caches are those of the longest request alone in each batch that is under way.
    """
    computed = (wanted, [request.prompt_alone for request in wanted])
    blocks = [_block(*each, course) for each in zip(pools, computed, NAMES, strict=False)]
    below = _below(pools[0], course, blocks[0]["breakdown"]["caches"])
    short = not all(pool.has_room for pool in pools)
    ranks = [rank for every in course.ranks.values() for rank in every] if course else []
    waited = any(rank.refusals or rank.preemptions for rank in ranks)
    other = {"prefill_memory": {"hbm": blocks[1]}} if len(blocks) > 1 else {}
    verdict = "does not fit" if short else "tight" if waited else "fits"
    return {"fits": not short, "verdict": verdict, "memory": {"hbm": blocks[0], **below}, **other}


def _below(pool: Pool, course: Course | None, caches: float) -> dict[str, Any]:
    """Of a card's part of host memory and of drives, where they hold anything; *caches* are those on the card.

    Without a *course*, what is set aside for caches that cards let go is full.
    """
    memory, node = pool.memory, pool.deployment.cluster.node
    kept = {tier.name: 0.0 if course else tier.capacity_bytes for tier in pool.tiers}
    for rank in course.ranks["decode"] if course else ():
        for name, size in rank.tiers.peak_bytes.items() if rank.tiers else ():
            kept[name] = max(kept[name], pool.batches * size)
    away = pool.cache_below * caches
    tiers = {
        HOST_TIER: (node.ddr.capacity.value, {**memory.host, "caches": away, "kept caches": kept.get(HOST_TIER, 0.0)}),
        DRIVE_TIER: (
            0.0 if node.nvme is None else node.nvme.capacity.value,
            {"weights": memory.drives_bytes, "kept caches": kept.get(DRIVE_TIER, 0.0)},
        ),
    }
    return {
        name: {
            "peak_bytes": sum(held.values()),
            "capacity_bytes": pool.share_of(capacity),
            "breakdown": {kind: size for kind, size in held.items() if size},
        }
        for name, (capacity, held) in tiers.items()
        if any(held.values()) or name in kept
    }


def _block(pool: Pool, wanted: Many[Request], name: str, course: Course | None) -> dict[str, Any]:
    """Of one accelerator of *pool*."""
    need = pool.memory.cache
    lengths = [request.longest for request in wanted]
    caches = pool.longest_bytes
    if course is not None:
        caches = pool.batches * max((row.used_bytes for row in course.rows[name]), default=0)
    held = {kind: size for kind, size in pool.held().items() if size}
    mean = need.bytes_of(round(sum(lengths) / len(lengths)))
    return {
        "peak_bytes": sum(held.values()) + caches,
        "capacity_bytes": pool.deployment.cluster.accelerator.hbm_capacity_bytes,
        "usable_bytes": pool.usable_bytes,
        "breakdown": {**held, "caches": caches},
        "cache": {
            "room_bytes": max(0.0, pool.cache_bytes),
            "bytes_per_token": need.token_bytes,
            "bytes_per_sequence": need.sequence_bytes,
            "mean_sequences": max(0.0, pool.cache_bytes) / mean if mean else None,
        },
    }

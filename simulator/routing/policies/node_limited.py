"""Routing in which a token's experts lie on few nodes: fewer copies of a token cross the fabric.

Tokens are drawn from the popularity. Each keeps the nodes that hold most of its picks, at random among equals; picks
elsewhere are replaced by experts of the kept nodes, by popularity. So popular nodes get more popular and the busiest
rank busier: that is what the limit does to a router that was not trained with it. A real router compares scores of
groups (section 2.1.2 of arXiv 2412.19437); recordings of a model that was trained with the limit contain it already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.routing.outcome import Outcome, Setting, placed
from simulator.routing.placement import contiguous
from simulator.routing.table import FloatArray, IntArray, RoutingTable
from simulator.routing.tokens import draw_tokens


@dataclass(frozen=True, slots=True)
class Options:
    """The limit, and how exactly to estimate what it does."""

    nodes: int = 4
    """Nodes that may hold a token's experts."""
    sample_tokens: int = 2048
    """Tokens drawn for each layer."""


def apply(planned: RoutingTable, replayed: RoutingTable, setting: Setting, options: Options) -> Outcome:  # noqa: ARG001
    """*planned* does not matter. Raise :exc:`ValueError` where nodes and experts do not divide, or too few are left."""
    experts, nodes = replayed.experts, max(1, setting.ep // setting.ranks_per_node)
    if experts % nodes:
        raise ValueError(f"{experts} experts do not divide over {nodes} nodes")
    if options.nodes < 1 or options.nodes * (experts // nodes) < setting.top_k:
        raise ValueError(f"{options.nodes} nodes of {experts // nodes} experts do not hold {setting.top_k} for a token")
    rng = np.random.default_rng(setting.seed)
    counts, touched, drawn = np.empty_like(replayed.counts), 0.0, []
    for layer, popularity in enumerate(replayed.popularity):
        picks = draw_tokens(popularity, options.sample_tokens, setting.top_k, rng)
        chosen = limit_nodes(picks, popularity, nodes, options.nodes, rng)
        drawn.append(chosen)
        counts[layer] = np.bincount(chosen.ravel(), minlength=experts)
        touched += float(_per_node(chosen, experts, nodes).astype(bool).sum(axis=1).mean())
    name = f"{replayed.name}, at most {options.nodes} nodes"
    table = RoutingTable(counts, name, replayed.source, picks=np.stack(drawn))
    outcome = placed(contiguous(table.layers, experts, setting.ep), table, setting)
    return replace(outcome, nodes_per_token=touched / replayed.layers)


def limit_nodes(picks: IntArray, popularity: FloatArray, nodes: int, most: int, rng: np.random.Generator) -> IntArray:
    """Replace *picks* [tokens, top_k] so that each token's lie on at most *most* of the *nodes* nodes."""
    tokens, top_k = picks.shape
    held = _per_node(picks, popularity.size, nodes) + rng.random((tokens, nodes))
    kept_nodes = np.zeros((tokens, nodes), dtype=bool)
    np.put_along_axis(kept_nodes, np.argpartition(-held, min(most, nodes) - 1, axis=1)[:, :most], True, axis=1)
    allowed = np.repeat(kept_nodes, popularity.size // nodes, axis=1)
    # The largest of log weight plus Gumbel noise is a draw by weight; experts already picked come before all others.
    key = np.log(np.maximum(popularity, 1e-300)) + rng.gumbel(size=allowed.shape)
    np.put_along_axis(key, picks, np.inf, axis=1)
    key[~allowed] = -np.inf
    return np.asarray(np.argpartition(-key, top_k - 1, axis=1)[:, :top_k])


def _per_node(picks: IntArray, experts: int, nodes: int) -> IntArray:
    """Picks on each node, [tokens, nodes]."""
    at = picks // (experts // nodes) + nodes * np.arange(len(picks))[:, None]
    return np.bincount(at.ravel(), minlength=nodes * len(picks)).reshape(-1, nodes)

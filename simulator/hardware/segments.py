"""Segments: nodes that a workload manager puts into one scale-up domain together, where a job takes several domains.

A domain of several nodes is a rack of NVL72 trays, or a super-node. Jobs on more than one of them ask for segments
(Slurm's `--segment`, of its block topology), so that no group of ranks lies across two: NVIDIA's guide to DeepSeek-V3
on 256 GB200 wants the 32 ranks of an expert-parallel group in one rack (NVIDIA/Megatron-LM
docs/discussions/deepseek-v3-gb200-optimization).
"""

from __future__ import annotations

from simulator.hardware.node import Node


def segment_accelerators(node: Node, accelerators: int, asked_nodes: int | None) -> int:
    """How many accelerators of each scale-up domain a job of so many has.

    With *asked_nodes*: those nodes'. Without: of the sizes that share *accelerators* out evenly, the largest that is at
    least half a domain, and where there is none the domain. 256 on racks of 72 get 64 of each of four, 144 get both.
    Raise :exc:`ValueError` for a number of nodes that cannot be, with the nearest one that can.
    """
    held, domain = node.accelerators, node.scale_up.domain
    if asked_nodes is not None:
        _check(node, accelerators, asked_nodes)
        return asked_nodes * held
    if accelerators <= domain or domain == held:
        return domain
    even = (size for size in range(domain, domain // 2 - 1, -1) if size % held == 0 and accelerators % size == 0)
    return next(even, domain)


def _check(node: Node, accelerators: int, asked: int) -> None:
    held = node.accelerators
    if node.scale_up.domain == held:
        raise ValueError(f"found {asked}, but scale-up links of {node.name} end at the node; leave it out")
    most, nodes = node.scale_up.domain // held, -(-accelerators // held)
    allowed = [count for count in range(1, most + 1) if nodes % count == 0]
    if asked not in allowed:
        raise ValueError(
            f"found {asked}; allowed: a divisor of {accelerators} / {held} = {nodes} nodes, of up to {most} in a "
            f"scale-up domain; nearest: {min(allowed, key=lambda count: abs(count - asked))}"
        )

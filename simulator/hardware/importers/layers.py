"""Fabrics that a format gives as dimensions: the accelerators and links that they stand for.

An accelerator has one coordinate in each dimension; those that differ in one coordinate only share a switch, a mesh or
a ring of that dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from simulator.hardware.importers.dump import bad
from simulator.hardware.topology import MAX_PARTS, Device, Dimension, Link, Topology


def build(
    format_: str, dimensions: Sequence[Dimension], unknown: Iterable[str] = (), assumed: Iterable[str] = ()
) -> Topology:
    """The topology of *dimensions*. Raise :exc:`.dump.BadDump` where its parts would be too many."""
    count = prod(dimension.size for dimension in dimensions)
    parts = count + sum(count * _links_each(dimension) for dimension in dimensions)
    if parts > MAX_PARTS:
        raise bad(f"stands for {count:,} accelerators and {parts - count:,.0f} links, more than {MAX_PARTS:,}")
    devices = [Device(f"npu{i}", "accelerator") for i in range(count)]
    links: list[Link] = []
    stride = 1
    for layer, dimension in enumerate(dimensions):
        for first in range(count):
            if first // stride % dimension.size == 0 and dimension.size > 1:
                members = [f"npu{first + step * stride}" for step in range(dimension.size)]
                made, switch = _join(dimension, members, f"switch{layer}.{first}", layer)
                links += made
                devices += switch
        stride *= dimension.size
    return Topology(format_, tuple(devices), tuple(links), tuple(dimensions), tuple(unknown), tuple(assumed))


def _links_each(dimension: Dimension) -> float:
    return (dimension.size - 1) / 2 if dimension.shape == "mesh" else 1


def _join(dimension: Dimension, members: list[str], name: str, layer: int) -> tuple[list[Link], list[Device]]:
    kind = "scale-up" if layer == 0 and dimension.kind != "cable" else "cable"
    what = (kind, dimension.links or 1, dimension.bandwidth_bytes_per_s, dimension.latency_s)
    if dimension.shape == "switch":
        return [Link(member, name, *what) for member in members], [Device(name, "switch")]
    if dimension.shape == "mesh":
        return [Link(one, other, *what) for i, one in enumerate(members) for other in members[i + 1 :]], []
    ring = members if len(members) > 2 else members[:1]
    return [Link(one, members[(i + 1) % len(members)], *what) for i, one in enumerate(ring)], []

"""ASTRA-sim's htsim fat tree: nodes, tiers, pod size, and the rate, radix and latency of each tier."""

from __future__ import annotations

from simulator.documents.problem import escape
from simulator.hardware.importers import layers
from simulator.hardware.importers.dump import bad, number, whole
from simulator.hardware.topology import Dimension, Topology

FORMAT = "ASTRA-sim htsim fat tree"

_KEYS = {
    "nodes",
    "tiers",
    "podsize",
    "tier",
    "downlink_speed_gbps",
    "radix_down",
    "radix_up",
    "downlink_latency_ns",
    "bundle",
}


def recognises(text: str) -> bool:
    """Lines of a word and a number, the radix among them."""
    return "Radix_Down" in text and any(line.split()[:1] == ["Nodes"] for line in text.split("\n"))


def read(text: str) -> Topology:
    """The tree as dimensions: hosts of a leaf, leaves of a pod, pods. Raise :exc:`.dump.BadDump`."""
    top, tiers = _values(text)
    nodes = whole(top.get("nodes", ""), "Nodes", None, least=1)
    count = whole(top.get("tiers", ""), "Tiers", None, least=2, most=3)
    pod = whole(top.get("podsize", str(nodes)), "Podsize", None, least=1)
    missing = [str(tier) for tier in range(count) if tier not in tiers]
    if missing:
        raise bad(f"says {count} tiers, but has no block of tier {', '.join(missing)}: the dump is cut off")
    sizes = [_figure(tiers, 0, "radix_down")]
    sizes += [pod / sizes[0], nodes / pod] if count == 3 else [nodes / sizes[0]]
    if any(size < 1 or size % 1 for size in sizes):
        raise bad(f"{nodes} nodes in pods of {pod} are not whole leaves of {sizes[0]:g}")
    dimensions = [_dimension(tiers, tier, int(size)) for tier, size in enumerate(sizes)]
    kept = [dimension for dimension in dimensions if dimension.size > 1] or dimensions[:1]
    return layers.build(FORMAT, kept, ["how many accelerators a node holds: each node counts as one"])


def _values(text: str) -> tuple[dict[str, str], dict[int, dict[str, str]]]:
    top: dict[str, str] = {}
    tiers: dict[int, dict[str, str]] = {}
    block = top
    for line_number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0].lower() not in _KEYS:
            raise bad(
                f"found {escape(line.strip())!r}, expected a key and a number; keys: {', '.join(sorted(_KEYS))}",
                line_number,
            )
        if words[0].lower() == "tier":
            block = tiers.setdefault(whole(words[1], "Tier", line_number, most=2), {})
        else:
            block[words[0].lower()] = words[1]
    return top, tiers


def _figure(tiers: dict[int, dict[str, str]], tier: int, key: str, default: str | None = None) -> float:
    word = tiers[tier].get(key, default)
    if word is None:
        raise bad(f"tier {tier} has no {key}: the dump is cut off")
    value = number(word, f"{key} of tier {tier}", None)
    if not value:
        raise bad(f"{key} of tier {tier} is 0, expected more")
    return value


def _dimension(tiers: dict[int, dict[str, str]], tier: int, size: int) -> Dimension:
    port = _figure(tiers, 0, "downlink_speed_gbps") * 1e9 / 8
    latency_s = 2 * sum(_figure(tiers, below, "downlink_latency_ns") for below in range(tier + 1)) * 1e-9
    over = 1.0
    if tier:
        down = _figure(tiers, tier - 1, "radix_down") * _figure(tiers, tier - 1, "downlink_speed_gbps")
        down *= _figure(tiers, tier - 1, "bundle", "1")
        up = _figure(tiers, tier - 1, "radix_up") * _figure(tiers, tier, "downlink_speed_gbps")
        up *= _figure(tiers, tier, "bundle", "1")
        over = max(1.0, down / up)
    return Dimension("switch", size, "cable", port / over, latency_s, 1, over)

"""Switches between hosts, layer above layer; cables as lines, as wide as they are many."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from simulator.hardware.survey import SwitchTier, tiers
from simulator.hardware.topology import Topology
from simulator.report.paper import FAINT
from simulator.report.shapes import COLOURS, box, line, note, plain
from simulator.units import human_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_HOSTS, _MOST_SWITCHES = 96, 24
_WIDTH = 24.0
_LAYERS = {1: "leaves", 2: "spines", 3: "core"}


def draw_fabric(axes: Axes, topology: Topology) -> list[tuple[str, str]]:
    """Draw hosts and switches into *axes*; return the legend's entries."""
    found = tiers(topology)
    chains = topology.chains()
    ends = {
        end: chains[end][-1].id
        for link in topology.links
        if link.kind == "cable"
        for end in (link.one, link.other)
        if chains[end][-1].kind == "host"
    }
    hosts = list(dict.fromkeys(ends.values()))
    domains = _domains(topology, set(hosts))
    hosts = _together(hosts, domains)
    plain(axes, _WIDTH, -1.3 - 0.5 * bool(domains), 1.6 * len(found) + 0.7)
    places = _row(hosts[:_MOST_HOSTS], 0.0)
    for height, tier in enumerate(found, 1):
        places |= _row(list(tier.switches[:_MOST_SWITCHES]), 1.6 * height)
    _cables(axes, topology, places, ends)
    _hosts(axes, hosts, places)
    for height, tier in enumerate(found, 1):
        _switches(axes, topology, tier, height, places)
    for name, members in domains.items():
        xs = [places[host][0] for host in members if host in places]
        if xs:
            width = max(xs) - min(xs) + 0.8 * _WIDTH / max(len(hosts), 6)
            box(
                axes,
                (min(xs) + max(xs)) / 2,
                -1.35,
                width,
                0.42,
                "switch",
                f"{name}: NVLink domain of {len(members)} hosts",
                8,
            )
    return [(COLOURS["host"], "host"), (COLOURS["switch"], "switch")]


def _row(names: list[str], y: float) -> dict[str, tuple[float, float]]:
    step = _WIDTH / max(len(names), 1)
    return {name: (step * (i + 0.5), y) for i, name in enumerate(names)}


def _domains(topology: Topology, hosts: set[str]) -> dict[str, list[str]]:
    domains: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        if link.kind == "nvlink" and link.one in hosts:
            domains[link.other].append(link.one)
    return dict(domains)


def _together(hosts: list[str], domains: dict[str, list[str]]) -> list[str]:
    """Hosts of one domain side by side."""
    return list(dict.fromkeys([host for members in domains.values() for host in members] + hosts))


def _cables(axes: Axes, topology: Topology, places: dict[str, tuple[float, float]], ends: dict[str, str]) -> None:
    width: dict[tuple[str, str], int] = defaultdict(int)
    for link in topology.links:
        if link.kind == "cable":
            pair = (ends.get(link.one, link.one), ends.get(link.other, link.other))
            width[pair] += link.count or 1
    drawn = {pair: count for pair, count in width.items() if pair[0] in places and pair[1] in places}
    # Many lines would run together into one grey field.
    thin = max(0.15, min(1.0, 100 / max(len(drawn), 1)))
    for (one, other), count in drawn.items():
        above = min(places[one][1], places[other][1]) > 0
        line(axes, places[one], places[other], FAINT if above else "#B7C3CC", thin * min(0.6 + 0.5 * count, 5.0))


def _hosts(axes: Axes, hosts: list[str], places: dict[str, tuple[float, float]]) -> None:
    shown = [host for host in hosts if host in places]
    step = _WIDTH / max(len(shown), 1)
    for host in shown:
        words = host if len(host) <= 2 + 5 * step else "?"
        box(axes, *places[host], min(0.9 * step, 2.6), 0.5, "host", words if step > 0.9 else "", 8)
    left_out = f", {len(hosts) - len(shown)} more not drawn" if len(hosts) > len(shown) else ""
    ends = f", {shown[0]} to {shown[-1]}" if step <= 0.9 and shown else ""
    note(axes, 0, -0.65, f"{len(hosts)} hosts{ends}{left_out}", align="left")


def _switches(
    axes: Axes, topology: Topology, tier: SwitchTier, height: int, places: dict[str, tuple[float, float]]
) -> None:
    names = {device.id: device.name for device in topology.of("switch")}
    shown = [name for name in tier.switches if name in places]
    step = _WIDTH / max(len(shown), 1)
    for name in shown:
        words = _short(names[name] or name)
        box(axes, *places[name], min(0.8 * step, 4.5), 0.5, "switch", words if len(words) <= 6.5 * step else "", 8)
    rails = "one rail each, " if tier.railed else ""
    rate = _cable_rate(topology, set(tier.switches))
    speed = f", {human_rate(rate)} a cable" if rate else ""
    ratio = ""
    if height > 1:
        ratio = f", {tier.oversubscription:.3g}:1 below" if tier.links_known else ", ratio not told"
    what = f"{len(tier.switches)} {_LAYERS.get(height, f'switches of tier {height}')}"
    what += f" ({len(shown)} drawn)" if len(shown) < len(tier.switches) else ""
    words = f"{what}, {rails}{tier.hosts} hosts in reach{ratio}{speed}"
    note(axes, 0, 1.6 * height + 0.48, words, align="left")


def _cable_rate(topology: Topology, switches: set[str]) -> float | None:
    for link in topology.links:
        if link.kind == "cable" and {link.one, link.other} & switches and link.bandwidth_bytes_per_s and link.count:
            return link.bandwidth_bytes_per_s / link.count
    return None


def _short(name: str) -> str:
    """The host name in an InfiniBand description such as "MF0;leaf-01:MQM9701/U1"."""
    return name.rpartition(";")[2].partition(":")[0] or name

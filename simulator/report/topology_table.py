"""What `rackcast topo` shows of a dump: what was found, what is unknown, what was taken for granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from simulator.units import human_rate

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_MOST_ROWS = 12
_NAMES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "hccs": "HCCS",
    "xpulink": "XPULink",
    "unified bus": "Unified Bus",
    "pcie": "PCIe",
}


def spoken(kind: str) -> str:
    """A kind of link as its maker writes it."""
    return _NAMES.get(kind, kind)


def topology_table(found: Mapping[str, Any]) -> Group:
    """The screen for *found*, the object of `topo --json`."""
    from rich.console import Group
    from rich.text import Text

    grid = _grid()
    for name, words in _rows(found):
        grid.add_row(name, Text(words))
    return Group(Text(headline(found), style="bold"), "", grid)


def headline(found: Mapping[str, Any]) -> str:
    """The answer in one line: "8 accelerators, all joined by 18 nvlink through a switch"."""
    count = found["accelerators"]["count"]
    if not count:
        nics = f", {len(found['nics'])} ports" if found["nics"] else ""
        return f"{found['hosts']} hosts{nics} behind {found['switches'].get('switch', 0)} switches"
    of = f"{count} accelerators" if count > 1 else "1 accelerator"
    if found["dimensions"]:
        shapes = " x ".join(f"{layer['shape']} of {layer['size']}" for layer in found["layers"])
        return f"{of}: {shapes}"
    joined = [group for group in found["groups"] if group["kind"]]
    if not joined:
        return f"{of} with nothing between them but PCIe"
    sizes = Counter((len(group["members"]), group["kind"], group["shape"]) for group in joined)
    (size, kind, shape), number = sizes.most_common(1)[0]
    how = (
        "directly"
        if size == 2 and shape == "mesh"
        else {"switch": "through a switch", "mesh": "in a full mesh", "partial mesh": "in a partial mesh"}[shape]
    )
    who = "all" if size == count and count > 1 else f"{number} groups of {size}" if number > 1 else f"{size} of them"
    return f"{of}, {who} joined by {spoken(kind)} {how}"


def _rows(found: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "format", found["format"]
    if found["hosts"]:
        yield "hosts", str(found["hosts"])
    products = ", ".join(found["accelerators"]["products"])
    yield "accelerators", f"{found['accelerators']['count']}" + f" ({products})" * bool(products)
    yield from _listed("scale-up group", map(_group, found["groups"]))
    for link in found["links"]:
        rate = link["bandwidth_bytes_per_s"]
        yield (
            "links",
            f"{link['count']} {spoken(link['kind'])}, " + (f"{human_rate(rate)} each" if rate else "rate not told"),
        )
    if found["switches"]:
        yield "switches", ", ".join(f"{number} x {kind}" for kind, number in found["switches"].items())
    yield from _listed("NIC", map(_nic, found["nics"]))
    for node, accelerators in found["numa"].items():
        yield "NUMA", f"{node}: {_names(accelerators) or 'no accelerator'}"
    if found["drives"]:
        yield "drives", str(found["drives"])
    for height, tier in enumerate(found["tiers"], 1):
        over = tier["oversubscription"]
        ratio = "" if height == 1 else f", {over:.3g}:1 below it" if over else ", ratio not told"
        rails = ", one rail each" if tier["railed"] else ""
        yield f"tier {height}", f"{tier['switches']} switches, {tier['hosts']} hosts in reach{rails}{ratio}"
    for sentence in found["unknown"]:
        yield "not told", sentence
    for sentence in found["assumed"]:
        yield "taken so", sentence


def _listed(name: str, words: Iterable[str]) -> Iterable[tuple[str, str]]:
    all_words = list(words)
    for text in all_words[:_MOST_ROWS]:
        yield name, text
    if len(all_words) > _MOST_ROWS:
        yield name, f"... and {len(all_words) - _MOST_ROWS} more"


def _group(group: Mapping[str, Any]) -> str:
    members = _names(group["members"])
    if not group["kind"]:
        return f"{members}: alone"
    rate, peer = group["bandwidth_bytes_per_s"], group["peer_bandwidth_bytes_per_s"]
    links = f"{group['links']} links each" if group["links"] else "links not counted"
    told = f", {human_rate(rate)} per accelerator" if rate else ", rate not told"
    pair = f", {human_rate(peer)} to one peer" if rate and peer != rate else ""
    return f"{members}: {spoken(group['kind'])}, {group['shape']}, {links}{told}{pair}"


def _nic(nic: Mapping[str, Any]) -> str:
    name = f"{nic['id']} {nic['name']}" if nic["name"] and nic["name"] != nic["id"] else nic["id"]
    speed = f", {nic['port_bytes_per_s'] * 8e-9:.4g} Gbit/s" if nic["port_bytes_per_s"] else ""
    rail = f", rail {nic['rail']}" if nic["rail"] is not None else ""
    if nic["path"] is None:
        return f"{name} of {nic['host']}{rail}{speed}"
    near = f"nearest {_names(nic['nearest'])} ({nic['path']})" if nic["nearest"] else "near no accelerator (SYS)"
    return f"{name}: {near}{rail}{speed}"


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)})"


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    return grid

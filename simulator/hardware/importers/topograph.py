"""topograph's models: a tree of switches, blocks of hosts on leaves, and the NVLink domain of each block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from simulator.documents.problem import escape
from simulator.hardware.importers.astra_sim import yaml
from simulator.hardware.importers.dump import bad
from simulator.hardware.topology import Device, Link, Topology

FORMAT = "topograph model"

_RANGE = re.compile(r"([\w.-]{0,60})\[([0-9]{1,9})-([0-9]{1,9})\]([\w.-]{0,60})")
_MOST_HOSTS = 50_000


def recognises(text: str) -> bool:
    """Top-level switches, and blocks or nodes."""
    return all(re.search(pattern, text, re.MULTILINE) for pattern in (r"^switches\s*:", r"^(?:blocks|nodes)\s*:"))


def read(text: str) -> Topology:
    """Hosts, switches and domains. Raise :exc:`.dump.BadDump`."""
    document = yaml(text)
    tree, blocks = document.get("switches"), document.get("blocks", [])
    if not isinstance(tree, dict) or not isinstance(blocks, list):
        raise bad("switches: expected a mapping, and blocks a list")
    switches: dict[str, None] = {}
    links: dict[tuple[str, str], Link] = {}
    for name, below in tree.items():
        switches[escape(name)] = None
        for child in _texts(below, "switches", name):
            switches[child] = None
            links[child, escape(name)] = Link(child, escape(name), "cable", None)
    hosts: dict[str, None] = {}
    domains: dict[str, None] = {}
    for block in blocks:
        _block(block, switches, hosts, domains, links)
    if not hosts:
        raise bad("names no host in any block: the dump is cut off, or it is a tree of switches alone")
    clash = next((name for name in hosts if name in switches or name in domains), None)
    if clash:
        raise bad(f"{clash} is both a host and a switch")
    devices = [Device(name, "host") for name in hosts]
    devices += [Device(name, "switch") for name in switches if name not in domains]
    devices += [Device(name, "switch", "NVLink domain") for name in domains]
    untold = ["the accelerators and NICs of the hosts", "rates and numbers of links"]
    return Topology(FORMAT, tuple(devices), tuple(links.values()), (), tuple(untold), ())


def _block(
    block: Any,
    switches: dict[str, None],
    hosts: dict[str, None],
    domains: dict[str, None],
    links: dict[tuple[str, str], Link],
) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("switch"), str):
        raise bad("blocks: each needs a switch and nodes")
    leaf = escape(block["switch"])
    switches[leaf] = None
    notes = block.get("annotations")
    notes = notes if isinstance(notes, dict) else {}
    domain = next((escape(str(value)) for key, value in notes.items() if key.endswith("/domain")), None)
    for host in (one for pattern in _texts(block, "nodes", leaf) for one in _expand(pattern)):
        hosts[host] = None
        links[host, leaf] = Link(host, leaf, "cable", None)
        if domain and domain != leaf:
            domains[domain] = None
            links[host, domain] = Link(host, domain, "nvlink", None)
        if len(hosts) > _MOST_HOSTS:
            raise bad(f"names more than {_MOST_HOSTS:,} hosts")


def _texts(holder: Any, key: str, where: str) -> list[str]:
    values = holder.get(key, []) if isinstance(holder, dict) else []
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise bad(f"{escape(where)}.{key}: expected a list of names")
    return [escape(value) for value in values]


def _expand(pattern: str) -> Iterator[str]:
    """node[1101-1103] is node1101, node1102, node1103; leading zeros stay."""
    found = _RANGE.fullmatch(pattern)
    if not found:
        yield pattern
        return
    low, high = int(found[2]), int(found[3])
    if high < low or high - low >= _MOST_HOSTS:
        raise bad(f"{pattern}: expected a range upwards of at most {_MOST_HOSTS:,} hosts")
    width = len(found[2]) if found[2].startswith("0") else 0
    for index in range(low, high + 1):
        yield f"{found[1]}{index:0{width}d}{found[4]}"

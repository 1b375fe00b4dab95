"""InfiniBand subnets as lists of ports: what `ibnetdiscover` and ibsim share once their lines are read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import bad
from simulator.hardware.topology import MAX_PARTS, Device, Link, Topology

_HOST_PORT = re.compile(r"(\S+)\s+(?:HCA-|hca|mlx[45]_|ib|ibp|rdma)([0-9]{1,3})")
_AGGREGATION = re.compile("aggregation node", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cable:
    """One line of a block: port *here* of *one* leads to port *there* of *other*."""

    one: str
    here: int
    other: str
    there: int
    rate_bytes_per_s: float | None
    line: int


def join(format_: str, switches: dict[str, str], adapters: dict[str, str], cables: Iterable[Cable]) -> Topology:
    """The fabric of *switches* and *adapters* (description by id), each cable taken once.

    What a cable leads to without a block of its own is added; SHARP's pseudo-hosts are left out.
    """
    dropped = {name for name, words in adapters.items() if _AGGREGATION.search(words)}
    ends: dict[frozenset[tuple[str, int]], list[Cable]] = defaultdict(list)
    for cable in cables:
        if cable.one not in dropped and cable.other not in dropped:
            ends[frozenset({(cable.one, cable.here), (cable.other, cable.there)})].append(cable)
    _one_cable_a_port(ends)
    lines: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for pair, seen in ends.items():
        (one, _), (other, _) = sorted(pair) if len(pair) == 2 else (next(iter(pair)),) * 2
        if one != other:
            lines[one, other].append(seen[0].rate_bytes_per_s)
    rails = {name: _HOST_PORT.fullmatch(words.strip()) for name, words in adapters.items() if name not in dropped}
    devices = [Device(name, "switch", escape(words)) for name, words in switches.items()]
    ports = {name: rates[0] for pair, rates in lines.items() for name in pair}
    hosts: dict[str, Device] = {}
    unnamed = 0
    for name, found in rails.items():
        host = escape(found[1]) if found else f"host of {name}"
        unnamed += not found
        hosts.setdefault(host, Device(host, "host"))
        rail = int(found[2]) if found else None
        devices.append(Device(name, "nic", escape(adapters[name]), host, rail=rail, port_bytes_per_s=ports.get(name)))
    links = [Link(*pair, "cable", len(rates), _sum(rates)) for pair, rates in lines.items()]
    if len(devices) + len(links) > MAX_PARTS:
        raise bad(f"has more than {MAX_PARTS:,} devices and links")
    once = sum(len(seen) == 1 for seen in ends.values())
    unknown = ["the accelerators of the hosts"]
    unknown += [f"the host of {unnamed} adapters: their descriptions name none"] if unnamed else []
    unknown += ["the rates of the cables"] if any(None in rates for rates in lines.values()) else []
    assumed = [f"{once} of {len(ends)} cables are listed by one end only, and were taken as they are"] if once else []
    assumed += [f"{unnamed} adapters were taken as one host each"] if unnamed else []
    assumed += [f"{len(dropped)} aggregation nodes of SHARP were left out: they are no hosts"] if dropped else []
    return Topology(format_, (*hosts.values(), *devices), tuple(links), (), tuple(unknown), tuple(assumed))


def _one_cable_a_port(ends: dict[frozenset[tuple[str, int]], list[Cable]]) -> None:
    taken: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
    for pair, seen in ends.items():
        for port in pair:
            if port in taken and taken[port] != pair:
                raise bad(f"port {port[1]} of {escape(port[0])} has two cables", seen[0].line)
            taken[port] = pair


def _sum(rates: list[float | None]) -> float | None:
    return None if None in rates else sum(rate for rate in rates if rate)

"""Flat link lists of ns-3: SimAI's (with servers and NVSwitches) and HPCC's (hosts and switches).

The first line counts nodes and links, the second names the switches, then one line a link: source, destination, rate,
delay, error rate. A link of an accelerator to a switch outside its server is a NIC's, whose number is its rail.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import bad, whole
from simulator.hardware.topology import MAX_PARTS, Device, Link, Topology

FORMAT = "ns-3 link list (SimAI, HPCC)"

_HEAD = re.compile(r"([0-9]{1,7}) ([0-9]{1,7}) ([0-9]{1,7})(?: ([0-9]{1,7}) ([0-9]{1,7}) ([\w.-]{1,40}))?")
_RATE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)([KMGT]?)bps")
_DELAY = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,12})?)(ns|us|ms|s)")
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class _Head:
    accelerators: int
    in_server: int
    nvswitches: int
    links: int
    product: str


def recognises(text: str) -> bool:
    """A first line of counts, and a line with a rate and a delay."""
    lines = text.split("\n")
    return bool(_HEAD.fullmatch(" ".join(lines[0].split()))) and any(
        len(words) >= 4 and _RATE.fullmatch(words[2]) for words in (line.split() for line in lines[1:20])
    )


def read(text: str) -> Topology:
    """The servers and the fabric between them. Raise :exc:`.dump.BadDump`."""
    lines = [line.split() for line in text.split("\n")]
    head, switches = _head(lines)
    found = [_link(words, number) for number, words in enumerate(lines[2:], 3) if words]
    if len(found) != head.links:
        raise bad(
            f"counts {head.links} links in its first line, but {len(found)} follow: the dump is cut off or damaged"
        )
    nvswitches = switches[: head.nvswitches]
    devices = [Device(f"server{i}", "host") for i in range(-(-head.accelerators // head.in_server))]
    devices += [
        Device(f"gpu{i}", "accelerator", head.product, f"server{i // head.in_server}") for i in range(head.accelerators)
    ]
    devices += [Device(f"nvswitch{i}", "switch", "NVSwitch") for i in nvswitches]
    devices += [Device(f"switch{i}", "switch") for i in switches[head.nvswitches :]]
    links: list[Link] = []
    nics: Counter[int] = Counter()
    for one, other, rate, delay_s in found:
        if (one < head.accelerators) == (other < head.accelerators):
            links.append(Link(_name(one, head, nvswitches), _name(other, head, nvswitches), "cable", 1, rate, delay_s))
            continue
        end, switch = min(one, other), max(one, other)
        if switch in nvswitches:
            links.append(Link(f"gpu{end}", f"nvswitch{switch}", "nvlink", None, rate, delay_s))
        else:
            nic = Device(
                f"nic{end}.{nics[end]}", "nic", "", f"gpu{end}", rail=end % head.in_server, port_bytes_per_s=rate
            )
            nics[end] += 1
            devices.append(nic)
            links.append(Link(nic.id, f"switch{switch}", "cable", 1, rate, delay_s))
    untold = ["PCIe and NUMA inside the servers"]
    assumed = ["each link of a GPU to a switch outside its server was taken as one NIC's"] if nics else []
    return Topology(FORMAT, tuple(devices), tuple(links), (), tuple(untold), tuple(assumed))


def _head(lines: list[list[str]]) -> tuple[_Head, list[int]]:
    found = _HEAD.fullmatch(" ".join(lines[0]))
    if not found:
        raise bad("does not begin with the counts of nodes, switches and links", 1)
    if found[6]:
        nodes, in_server, nvswitches, others, links = (int(found[i]) for i in range(1, 6))
    else:
        nodes, others, links = (int(found[i]) for i in range(1, 4))
        in_server, nvswitches = 1, 0
    if nodes + links > MAX_PARTS:
        raise bad(f"counts {nodes:,} nodes and {links:,} links, more than {MAX_PARTS:,}", 1)
    accelerators = nodes - nvswitches - others
    if accelerators < 1 or in_server < 1:
        raise bad(f"counts {nodes} nodes, of which {nvswitches + others} are switches: no accelerator is left", 1)
    named = lines[1] if len(lines) > 1 else []
    if len(named) != nvswitches + others:
        raise bad(f"counts {nvswitches + others} switches, but its second line names {len(named)}", 2)
    switches = [whole(word, "a switch", 2, least=accelerators, most=nodes - 1) for word in named]
    if len(set(switches)) < len(switches):
        raise bad("names a switch twice", 2)
    return _Head(accelerators, in_server, nvswitches, links, found[6] or ""), switches


def _link(words: list[str], line: int) -> tuple[int, int, float, float]:
    if len(words) not in {4, 5}:
        raise bad(f"found {escape(' '.join(words))!r}, expected: source destination 400Gbps 0.0005ms error-rate", line)
    rate, delay = _RATE.fullmatch(words[2]), _DELAY.fullmatch(words[3])
    if not rate or not delay:
        raise bad(
            f"found rate {escape(words[2])!r} and delay {escape(words[3])!r}, expected such as 400Gbps and 0.0005ms",
            line,
        )
    one, other = (whole(word, "an end of a link", line) for word in words[:2])
    if one == other:
        raise bad(f"a link from {one} to itself", line)
    bits = float(rate[1]) * _PREFIX[rate[2]]
    if not bits:
        raise bad("a link with a rate of 0", line)
    return one, other, bits / 8, float(delay[1]) * _SECONDS[delay[2]]


def _name(node: int, head: _Head, nvswitches: list[int]) -> str:
    if node < head.accelerators:
        return f"gpu{node}"
    return f"nvswitch{node}" if node in nvswitches else f"switch{node}"

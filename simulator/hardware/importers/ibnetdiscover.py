"""`ibnetdiscover`: every switch and adapter of an InfiniBand subnet with its ports; hosts and rails by description."""

from __future__ import annotations

import re

from simulator.documents.problem import escape
from simulator.hardware.importers.cables import Cable, join
from simulator.hardware.importers.dump import bad, whole
from simulator.hardware.topology import Topology

FORMAT = "ibnetdiscover"

_BLOCK = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,4}\s+"([SHR]-[0-9A-Za-z]{1,32})"\s*(?:#\s*"([^"]*)")?.*')
_PORT = re.compile(
    r'\[([0-9]{1,4})\]\s*(?:\([0-9a-fA-F]{1,32}\))?\s*"([SHR]-[0-9A-Za-z]{1,32})"\s*\[([0-9]{1,4})\]'
    r"(?:\([0-9a-fA-F]{1,32}\))?\s*(?:#(.*))?"
)
_SPEED = re.compile(r"\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_LANE_GBIT = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64,
    "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Payload of one lane and direction."""


def recognises(text: str) -> bool:
    """A block of a switch or adapter with a GUID."""
    return any(_BLOCK.match(line) for line in text.split("\n"))


def read(text: str) -> Topology:
    """The subnet. Raise :exc:`.dump.BadDump` for a line that is no port, and for ports that contradict each other."""
    words: dict[str, dict[str, str]] = {"S": {}, "H": {}}
    cables: list[Cable] = []
    block = ""
    for number, line in enumerate(text.split("\n"), 1):
        head = _BLOCK.fullmatch(line.strip())
        if head:
            block = head[2]
            words.setdefault(block[0], {})[block] = head[3] or ""
        elif line.startswith("[") and block:
            cables.append(_cable(block, line, number, words))
        elif line.startswith("["):
            raise bad("a port before any block of a switch or adapter", number)
    if not cables:
        raise bad("has no connected port")
    return join(FORMAT, words["S"], words["H"], cables)


def _cable(block: str, line: str, number: int, words: dict[str, dict[str, str]]) -> Cable:
    found = _PORT.fullmatch(line.strip())
    if not found:
        raise bad(f'not a port: {escape(line)!r}; expected [1] "H-..."[1] # ... 4xNDR', number)
    other, rest = found[2], found[4] or ""
    quoted = re.findall(r'"([^"]*)"', rest)
    words.setdefault(other[0], {}).setdefault(other, quoted[0] if quoted else "")
    speed = _SPEED.search(rest)
    rate = int(speed[1]) * _LANE_GBIT[speed[2]] * 1e9 / 8 if speed else None
    here, there = whole(found[1], "port", number), whole(found[3], "port", number)
    return Cable(block, here, other, there, rate, number)

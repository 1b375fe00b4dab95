"""ibsim's net files: switches and adapters with their ports, without rates."""

from __future__ import annotations

import re

from simulator.documents.problem import escape
from simulator.hardware.importers.cables import Cable, join
from simulator.hardware.importers.dump import bad, whole
from simulator.hardware.topology import Topology

FORMAT = "ibsim net"

_NODE = re.compile(r'(Switch|Hca|Ca|Rt)\s+[0-9]{1,3}\s+"([\w.-]{1,64})"\s*', re.IGNORECASE)
_PORT = re.compile(r'\[([0-9]{1,4})\]\s*"([\w.-]{1,64})"\s*\[([0-9]{1,4})\].*')
_GUID = re.compile(r"[SHR]-[0-9a-fA-F]{8,}")


def recognises(text: str) -> bool:
    """A node whose name is not the GUID that ibnetdiscover prints."""
    heads = [found for line in text.split("\n") if (found := _NODE.fullmatch(line.strip()))]
    return bool(heads) and not any(_GUID.fullmatch(head[2]) for head in heads)


def read(text: str) -> Topology:
    """The net. Raise :exc:`.dump.BadDump`."""
    switches: dict[str, str] = {}
    adapters: dict[str, str] = {}
    cables: list[Cable] = []
    node = ""
    for number, whole_line in enumerate(text.split("\n"), 1):
        line = whole_line.partition("#")[0].strip()
        head, port = _NODE.fullmatch(line), _PORT.fullmatch(line)
        if head:
            node = head[2]
            (switches if head[1].lower() == "switch" else adapters)[node] = ""
        elif port and node:
            here, there = whole(port[1], "port", number), whole(port[3], "port", number)
            cables.append(Cable(node, here, port[2], there, None, number))
        elif line:
            raise bad(f"neither a node nor one of its ports: {escape(line)!r}", number)
    for cable in cables:
        if cable.other not in switches and cable.other not in adapters:
            raise bad(f"port {cable.here} of {cable.one} leads to {cable.other}, which is not in the file", cable.line)
    if not cables:
        raise bad("has no connected port")
    return join(FORMAT, switches, adapters, cables)

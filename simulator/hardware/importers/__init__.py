"""Reading dumps of topologies, one file per format; a file added to this folder is one more format.

An importer is a module with `recognises(text)`, which sniffs, and `read(text)`, which returns a
:class:`simulator.hardware.topology.Topology` or raises :exc:`.dump.BadDump`.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from simulator.documents import InvalidDocument, Problem
from simulator.documents.content import read_bytes
from simulator.documents.tree import Unreadable
from simulator.hardware.importers.dump import BadDump, bad, printable
from simulator.hardware.topology import Topology

MAX_FILE_BYTES = 16_000_000


def import_topology(path: Path) -> Topology:
    """The topology that the file *path* tells of. Raise :exc:`InvalidDocument` with what is wrong and its line."""
    text = _read(path)
    found = [module for module in importers() if module.recognises(text)]
    if not found:
        known = ", ".join(sorted(module.FORMAT for module in importers()))
        what = "is empty" if not text.strip() else "is in no format known"
        raise _refused(path, f"{what}; known: {known}")
    try:
        topology: Topology = found[0].read(text)
        check(topology)
    except BadDump as error:
        raise InvalidDocument(
            Problem(str(path), line, "", f"{found[0].FORMAT}: {message}") for line, message in error.problems
        ) from None
    return topology


def check(topology: Topology) -> None:
    """Raise :exc:`BadDump` where names of a dump clash, so that its devices would not form a tree with links."""
    parents = {device.id: device.parent for device in topology.devices}
    if len(parents) < len(topology.devices):
        names = Counter(device.id for device in topology.devices)
        raise bad(f"two parts have the name {names.most_common(1)[0][0]}")
    named = {name for link in topology.links for name in (link.one, link.other)}
    named |= {parent for parent in parents.values() if parent is not None}
    if strange := sorted(named - parents.keys()):
        raise bad(f"a link leads to {strange[0]}, which is no part of it")
    rooted = {name for name, parent in parents.items() if parent is None}
    waiting = parents.keys() - rooted
    while waiting:
        placed = {name for name in waiting if parents[name] in rooted}
        if not placed:
            raise bad(f"{min(waiting)} is held by itself")
        rooted |= placed
        waiting -= placed


@cache
def importers() -> tuple[ModuleType, ...]:
    """The modules of this folder that read a format, by name."""
    modules = (import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return tuple(module for module in modules if hasattr(module, "recognises"))


def _read(path: Path) -> str:
    try:
        content = read_bytes(path, MAX_FILE_BYTES, "the dump of one machine or fabric")
    except Unreadable as error:
        raise InvalidDocument([error.problem]) from None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        # What a redirection in PowerShell writes.
        return printable(content.decode("utf-16", errors="replace"))
    if b"\0" in content:
        raise _refused(path, "is a binary file, expected the text of a dump")
    return printable(content.decode("utf-8-sig", errors="replace"))


def _refused(path: Path, message: str) -> InvalidDocument:
    return InvalidDocument([Problem(str(path), None, "", message)])

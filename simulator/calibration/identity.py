"""Which accelerator a GPU is, by what it calls itself: a shipped one, or a new one with a name made of its words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from simulator.calibration.machine import Machine
from simulator.hardware.accelerator import AcceleratorSheet

MEMORY_TOLERANCE = 0.08
"""Between what programs can allocate and what a sheet says."""
_VENDORS = frozenset({"nvidia", "amd", "intel", "instinct", "graphics"})
_MEMORY = re.compile(r"\d+g[bi]*")


def identify(machine: Machine, sheets: Mapping[str, AcceleratorSheet]) -> str:
    """The id among *sheets* of the GPU of *machine*, or an id of its own.

    A sheet is that of the GPU if its id or name holds every word of the GPU's name that tells products apart, and its
    memory and compute units agree. Of several the one with the nearest memory, then with the shortest id.
    """
    wanted = {word for word in _words(machine.gpu) if _tells(word)}
    found = [
        (abs(sheet.hbm_capacity.value / machine.memory_bytes - 1), len(id_), id_)
        for id_, sheet in sheets.items()
        if wanted and wanted <= {*_words(id_), *_words(sheet.name)} and _agrees(sheet, machine)
    ]
    return min(found)[2] if found else "-".join(word for word in _words(machine.gpu) if word not in _VENDORS)


def _agrees(sheet: AcceleratorSheet, machine: Machine) -> bool:
    units = sheet.sm_count
    near = abs(sheet.hbm_capacity.value / machine.memory_bytes - 1) < MEMORY_TOLERANCE
    return near and (units is None or units.value == machine.compute_units)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _tells(word: str) -> bool:
    """Whether *word* is one of a product, such as h200 or 4090, and not of its memory or socket."""
    return any(c.isdigit() for c in word) and not _MEMORY.fullmatch(word) and not re.match(r"(hbm|sxm|pcie|gddr)", word)

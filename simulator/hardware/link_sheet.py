"""Rates of links by name: the files of hardware_profiles/links, which say what one link of an accelerator moves.

Dumps count links (NV18); what one moves depends on the accelerator that they do not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator import documents
from simulator.hardware.collective import Count
from simulator.hardware.figure import Figure, Record
from simulator.hardware.topology import SCALE_UP, Device, Dimension, Link, Topology
from simulator.shipped import shipped
from simulator.units import BytesPerSecond, human_rate


class LinkSheet(Record):
    """What a file of hardware_profiles/links says."""

    name: str
    kind: str
    """As :class:`simulator.hardware.topology.Link` has it."""
    rate: Figure[BytesPerSecond]
    """One link, or one lane of PCIe, one direction."""
    accelerators: dict[str, Count]
    """Links of each accelerator that has them, by its file in hardware_profiles/accelerators."""
    compute_capability: tuple[int, ...] = ()
    """Of NVIDIA's parts, as NCCL's `sm` gives it: 90 for 9.0."""


def link_sheets() -> tuple[LinkSheet, ...]:
    """Every shipped sheet, by file name."""
    return tuple(
        documents.load(path, LinkSheet) for path in sorted(shipped("hardware_profiles", "links").glob("*.yaml"))
    )


def sheet_for(accelerator: str, kind: str) -> LinkSheet | None:
    """The links of *kind* that *accelerator* has."""
    return next((one for one in link_sheets() if one.kind == kind and accelerator in one.accelerators), None)


def with_rates(topology: Topology, accelerator: str | None) -> Topology:
    """*topology* with the rates that *accelerator*, or NCCL's name of the generation, gives to links that have none."""
    chosen: dict[str, LinkSheet | None] = {}
    by_id = {device.id: device for device in topology.devices}

    def filled(link: Link) -> Link:
        if link.kind not in SCALE_UP or link.bandwidth_bytes_per_s is not None:
            return link
        if link.kind not in chosen:
            chosen[link.kind] = _choose(link, by_id, accelerator)
        sheet = chosen[link.kind]
        if sheet is None:
            return link
        through = by_id[link.one].kind == "switch" or by_id[link.other].kind == "switch"
        count = link.count or (sheet.accelerators.get(accelerator or "", 1) if through else 1)
        return replace(link, count=count, bandwidth_bytes_per_s=count * sheet.rate.value)

    links = tuple(filled(link) for link in topology.links)
    notes = [
        f"{sheet.name} at {human_rate(sheet.rate.value)} a link, one direction ({sheet.rate.source})"
        for sheet in chosen.values()
        if sheet is not None
    ]
    untold = topology.unknown
    if notes:
        untold = tuple(
            sentence for sentence in untold if "rate of a link" not in sentence and "rate of one link" not in sentence
        )
    return replace(topology, links=links, unknown=untold, assumed=(*topology.assumed, *notes))


def with_pcie(layers: Sequence[Dimension], accelerator: str) -> tuple[tuple[Dimension, ...], str]:
    """*layers* with the rate of *accelerator*'s own slot where the dump does not tell PCIe's, and a remark on it:
    empty where nothing was filled in.
    """
    sheet = sheet_for(accelerator, "pcie")
    if sheet is None or not any(layer.kind == "pcie" and layer.bandwidth_bytes_per_s is None for layer in layers):
        return tuple(layers), ""
    rate = sheet.accelerators[accelerator] * sheet.rate.value
    filled = (
        replace(layer, bandwidth_bytes_per_s=rate)
        if layer.kind == "pcie" and layer.bandwidth_bytes_per_s is None
        else layer
        for layer in layers
    )
    return tuple(filled), f"Assumed: the rate of pcie, {sheet.name} with all lanes of {accelerator}."


def _choose(link: Link, by_id: dict[str, Device], accelerator: str | None) -> LinkSheet | None:
    if accelerator is not None:
        return sheet_for(accelerator, link.kind)
    words = (by_id[link.one].name or by_id[link.other].name).split()
    capability = int(words[1]) if len(words) == 2 and words[0] == "sm" and words[1].isdigit() else None
    return next((one for one in link_sheets() if one.kind == link.kind and capability in one.compute_capability), None)

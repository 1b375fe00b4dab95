"""hwloc's XML (lstopo FILE.xml): packages, NUMA nodes with memory, the PCI tree with rates, and NVLink bandwidths.

A bridge with one thing below is a port and is passed over; one with several is a PCIe switch. The matrix
`NVLinkBandwidth` is in MB/s of one direction between accelerators, NVSwitches and packages.
"""

from __future__ import annotations

import re

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import bad, number, whole
from simulator.hardware.importers.xml_tree import Element, parse, root_tag
from simulator.hardware.topology import Device, Link, Topology

FORMAT = "hwloc XML"

_MOST_OF_MATRIX = 1024
_ACCELERATOR = re.compile(r"(?:cuda|nvml|rsmi|opencl|ze|hsa)[0-9]")
_ACCELERATOR_CLASSES = ("0302", "1200", "0380")
_NIC_CLASSES = ("0200", "0207")
_DRIVE_CLASSES = ("0108",)


def recognises(text: str) -> bool:
    """XML whose first element is a topology."""
    return root_tag(text) == "topology"


def read(text: str) -> Topology:
    """The machine. Raise :exc:`.dump.BadDump`."""
    root = parse(text)
    machine = next((child for child in root.children if child.tag == "object"), None)
    if machine is None:
        raise bad("has no <object>: it describes no machine", root.line)
    walk = _Walk()
    walk.visit(machine, walk.host)
    links = walk.sockets() + _bandwidths(root, walk)
    untold = (
        ["the rates of the NICs' ports"]
        if any(d.kind == "nic" for d in walk.devices)
        else ["NICs: the dump lists none"]
    )
    if not any(device.kind == "accelerator" for device in walk.devices):
        untold.append("accelerators: the dump lists none; hwloc may have been built without the vendor's library")
    if sum(link.kind == "nvlink" for link in links) and any(device.kind == "switch" for device in walk.devices):
        untold.append("links from one NVSwitch to another")
    return Topology(FORMAT, tuple(walk.devices), tuple(links), (), tuple(untold), tuple(walk.assumed))


class _Walk:
    def __init__(self) -> None:
        self.host = Device("host", "host")
        self.devices = [self.host]
        self.assumed: list[str] = []
        self.by_index: dict[str, str] = {}
        """Device by "PCIDev:449", "OSDev:802" or "Package:3", as the matrices name them."""
        self._ids: set[str] = set()

    def visit(self, element: Element, parent: Device) -> None:
        """Add what is below *element*, which is an object of the machine or its parts. Depth is that of the XML."""
        parent = self._memory(element, parent)
        self._index(element, parent.id)
        for child in element.children:
            if child.tag != "object" or child.get("type") == "NUMANode":
                continue
            kind = child.get("type")
            if kind == "Bridge":
                self._bridge(child, parent)
            elif kind == "PCIDev":
                self._pci(child, parent)
            elif kind not in {"Core", "PU"}:
                self.visit(child, parent)

    def _index(self, element: Element, device: str) -> None:
        self.by_index[f"{element.get('type')}:{element.get('gp_index')}"] = device

    def _memory(self, element: Element, parent: Device) -> Device:
        """The NUMA node that *element* carries; what hangs on the element hangs on the node."""
        for child in element.children:
            if child.get("type") == "NUMANode":
                index = whole(child.get("os_index", "0"), "os_index", child.line)
                size = number(child.get("local_memory", "0"), "local_memory", child.line, most=1e15) or None
                node = Device(f"numa{index}", "numa", f"NUMA node {index}", "host", capacity_bytes=size)
                if node.id not in self._ids:
                    self._add(node)
                self._index(child, node.id)
                if parent.kind == "host":
                    parent = node
        return parent

    def _bridge(self, bridge: Element, parent: Device) -> None:
        below = [child for child in bridge.children if child.get("type") in {"Bridge", "PCIDev"}]
        if bridge.get("bridge_type").startswith("0-"):
            parent = self._add(Device(f"host-bridge {self._bus(bridge, 'bridge_pci')}", "host bridge", "", parent.id))
        elif len(below) > 1:
            bus = self._bus(bridge, "pci_busid")
            parent = self._add(Device(f"pcie-switch {bus}", "pcie switch", "", parent.id, self._rate(bridge)))
        for child in below:
            (self._bridge if child.get("type") == "Bridge" else self._pci)(child, parent)

    def _bus(self, element: Element, key: str) -> str:
        return escape(element.get(key)) or f"of line {element.line}"

    def _rate(self, element: Element) -> float | None:
        return number(element.get("pci_link_speed", "0"), "pci_link_speed", element.line, most=1e6) * 1e9 or None

    def _pci(self, pci: Element, parent: Device) -> None:
        class_ = pci.get("pci_type")[:4].lower()
        parts = [child for child in pci.children if child.get("type") == "OSDev"]
        names = [escape(part.get("name")) for part in parts]
        bus = self._bus(pci, "pci_busid")
        rate = self._rate(pci)
        device: Device | None = None
        if pci.get("subtype") == "NVSwitch":
            device = Device(f"nvswitch {bus}", "switch", "NVSwitch", parent.id, rate)
        elif class_ in _ACCELERATOR_CLASSES or (class_ == "0300" and any(map(_ACCELERATOR.match, names))):
            index = sum(device.kind == "accelerator" for device in self.devices)
            device = Device(f"GPU{index}", "accelerator", _model(parts), parent.id, rate)
        elif class_ in _NIC_CLASSES and names:
            device = Device(names[0], "nic", ", ".join(names), parent.id, rate)
        elif class_ in _DRIVE_CLASSES or any(name.startswith("nvme") for name in names):
            device = Device(
                names[0] if names else f"drive {bus}", "drive", "", parent.id, rate, capacity_bytes=_size(parts)
            )
        if device is not None:
            self._add(device)
            for element in (pci, *parts):
                self._index(element, device.id)

    def _add(self, device: Device) -> Device:
        if device.id in self._ids:
            raise bad(f"{device.kind} {device.id} is there twice")
        self._ids.add(device.id)
        self.devices.append(device)
        return device

    def kind_between(self, one: str, other: str) -> str:
        """The kind "nvlink" between accelerators and switches; c2c where one end is a processor's memory."""
        ends = {device.kind for device in self.devices if device.id in {one, other}}
        return "nvlink" if ends <= {"accelerator", "switch"} else "c2c"

    def sockets(self) -> list[Link]:
        """A link between each two NUMA nodes with processors; which of several ways it runs is not told."""
        numa = [device.id for device in self.devices if device.kind == "numa"]
        return [Link(one, other, "socket", None) for i, one in enumerate(numa) for other in numa[i + 1 :]]


def _model(parts: list[Element]) -> str:
    infos = [info for part in parts for info in part.children if info.get("name") == "GPUModel"]
    return escape(infos[0].get("value")) if infos else ""


def _size(parts: list[Element]) -> float | None:
    for part in parts:
        for info in part.children:
            if info.get("name") == "Size" and re.fullmatch("[0-9]{1,15}", info.get("value")):
                # Block devices are counted in KiB.
                return float(info.get("value")) * 1024
    return None


def _bandwidths(root: Element, walk: _Walk) -> list[Link]:
    matrix = next((child for child in root.children if child.get("name") == "NVLinkBandwidth"), None)
    if matrix is None:
        return []
    size = whole(matrix.get("nbobjs", "0"), "nbobjs", matrix.line, most=_MOST_OF_MATRIX)
    words = {
        tag: [word for child in matrix.children if child.tag == tag for word in child.text.split()]
        for tag in ("indexes", "u64values")
    }
    names, values = words["indexes"], words["u64values"]
    if len(names) != size or len(values) != size * size:
        raise bad(
            f"NVLinkBandwidth of {size} objects has {len(names)} names and {len(values)} of {size * size} values",
            matrix.line,
        )
    rates = [number(value, "a bandwidth", matrix.line, most=1e12) * 1e6 for value in values]
    ends = [walk.by_index.get(name if ":" in name else f"{matrix.get('type')}:{name}") for name in names]
    links: dict[tuple[str, str], Link] = {}
    lost = 0
    for i, one in enumerate(ends):
        for j in range(i + 1, size):
            other, rate = ends[j], rates[i * size + j]
            if not rate or one == other:
                continue
            if one is None or other is None:
                lost += 1
            else:
                links[one, other] = Link(one, other, walk.kind_between(one, other), None, rate)
    if lost:
        walk.assumed.append(f"{lost} NVLink bandwidths of objects that are not in the tree were left out")
    return list(links.values())

"""NCCL's and RCCL's topology XML (NCCL_TOPO_DUMP_FILE): PCIe tree with speeds, NVLink or xGMI by GPU, ports of NICs.

A CPU element stands for a NUMA node with its host bridges. NVLinks whose target has the class of a bridge lead to an
NVSwitch; on newer machines all carry one placeholder target, which then is one switch.
"""

from __future__ import annotations

from simulator.documents.problem import escape
from simulator.hardware.importers.dump import bad, number, whole
from simulator.hardware.importers.pcie import rate_bytes_per_s
from simulator.hardware.importers.xml_tree import Element, parse, root_tag
from simulator.hardware.topology import Device, Link, Topology

FORMAT = "NCCL/RCCL topology XML"

_NVSWITCH = "0x068000"


def recognises(text: str) -> bool:
    """XML whose first element is a system, as NCCL writes it."""
    return root_tag(text) == "system"


def read(text: str) -> Topology:
    """The hosts that the file describes. Raise :exc:`.dump.BadDump`."""
    root = parse(text)
    found = _Walk()
    cpus = [element for element in root.children if element.tag == "cpu"]
    if not cpus:
        raise bad("has no <cpu> element", root.line)
    for cpu in cpus:
        found.cpu(cpu)
    if not any(device.kind in {"accelerator", "nic"} for device in found.devices.values()):
        raise bad("has neither a <gpu> nor a <net> element", root.line)
    links, unknown, assumed = found.links()
    untold = ["the rate of one link between accelerators"] if any(link.kind != "socket" for link in links) else []
    return Topology(FORMAT, tuple(found.devices.values()), tuple(links), (), (*untold, *unknown), tuple(assumed))


class _Walk:
    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self._by_bus: dict[str, str] = {}
        self._wires: list[tuple[str, Element]] = []
        self._c2c: list[Link] = []

    def cpu(self, cpu: Element) -> None:
        name = escape(cpu.get("host_hash")) or "host"
        host = self.devices.setdefault(name, Device(name, "host"))
        numa = whole(cpu.get("numaid", "0").removeprefix("-"), "numaid", cpu.line, most=10_000)
        prefix = f"{name}/" if name != "host" else ""
        made = self._add(Device(f"{prefix}numa{numa}", "numa", f"NUMA node {numa}", host.id), cpu)
        for child in cpu.children:
            self._below(child, made, None, prefix)

    def _below(self, element: Element, parent: Device, rate: float | None, prefix: str) -> None:
        if element.tag == "pci":
            rate = rate_bytes_per_s(element.get("link_speed"), element.get("link_width"))
            bus = escape(element.need("busid"))
            if element.get("class").startswith("0x0604") or any(child.tag == "pci" for child in element.children):
                parent = self._add(Device(prefix + bus, "pcie switch", "", parent.id, rate), element)
            for child in element.children:
                self._endpoint(child, parent, rate, prefix, bus)
        else:
            self._endpoint(element, parent, rate, prefix, "")

    def _endpoint(self, element: Element, parent: Device, rate: float | None, prefix: str, bus: str) -> None:
        if element.tag == "pci":
            self._below(element, parent, None, prefix)
        elif element.tag == "gpu":
            self._gpu(element, parent, rate, prefix, bus)
        elif element.tag == "nic":
            for net in element.children:
                if net.tag == "net":
                    self._net(net, parent, rate, prefix)

    def _gpu(self, gpu: Element, parent: Device, rate: float | None, prefix: str, bus: str) -> None:
        index = whole(gpu.get("dev", "0"), "dev", gpu.line)
        product = f"gcn {gpu.get('gcn')}" if gpu.get("gcn") else f"sm {gpu.get('sm')}" * bool(gpu.get("sm"))
        made = self._add(Device(f"{prefix}GPU{index}", "accelerator", escape(product), parent.id, rate), gpu)
        self._by_bus[bus] = made.id
        for child in gpu.children:
            if child.tag in {"nvlink", "xgmi"}:
                self._wires.append((made.id, child))
            elif child.tag == "c2c":
                count = whole(child.get("count", "1"), "count", child.line, least=1)
                each = number(child.get("bw", "0"), "bw", child.line) * 1e6
                numa = self._numa_of(parent)
                self._c2c.append(Link(made.id, numa, "c2c", count, count * each or None))

    def _numa_of(self, device: Device) -> str:
        while device.kind != "numa" and device.parent is not None:
            device = self.devices[device.parent]
        return device.id

    def _net(self, net: Element, parent: Device, rate: float | None, prefix: str) -> None:
        name = escape(net.get("name")) or f"net{net.get('dev')}"
        megabits = number(net.get("speed", "0"), "speed", net.line)
        port = megabits * 1e6 / 8 or None
        self._add(Device(prefix + name, "nic", name, parent.id, rate, port_bytes_per_s=port), net)

    def _add(self, device: Device, element: Element) -> Device:
        if device.id in self.devices:
            raise bad(f"{device.kind} {device.id} is there twice", element.line)
        self.devices[device.id] = device
        return device

    def links(self) -> tuple[list[Link], list[str], list[str]]:
        """Every link once, though both ends list it; what leads nowhere; what was taken for granted."""
        found: dict[tuple[str, str], Link] = {}
        seen_from: dict[tuple[str, str], int] = {}
        lost = 0
        for name, wire in self._wires:
            count = whole(wire.get("count", "1"), "count", wire.line, least=1, most=1000)
            target = escape(wire.need("target"))
            kind = wire.tag
            if wire.get("tclass") == _NVSWITCH:
                switch = self.devices.setdefault(
                    f"nvswitch {target}", Device(f"nvswitch {target}", "switch", "NVSwitch")
                )
                other: str | None = switch.id
            else:
                other = self._by_bus.get(target)
            if other is None or other == name:
                lost += 1
                continue
            pair = (name, other) if name < other else (other, name)
            seen_from[pair] = seen_from.get(pair, 0) + 1
            known = found[pair].count if pair in found else 0
            found[pair] = Link(*pair, kind, max(count, known or 0))
        numa = [device for device in self.devices.values() if device.kind == "numa"]
        sockets = [
            Link(one.id, other.id, "socket", None)
            for i, one in enumerate(numa)
            for other in numa[i + 1 :]
            if one.parent == other.parent
        ]
        accelerators = {device.id for device in self.devices.values() if device.kind == "accelerator"}
        once = sum(count == 1 and set(pair) <= accelerators for pair, count in seen_from.items())
        unknown = [f"the other end of {lost} links: it is not in the file"] if lost else []
        assumed = [f"{once} links are listed by one of their two ends only"] if once else []
        return [*found.values(), *self._c2c, *sockets], unknown, assumed

"""`xpu-smi topo -m` of Kunlun XPUs: the layout of nvidia-smi, with XL for XPULink, whose rate is not public."""

from __future__ import annotations

from simulator.hardware.importers.matrix import header_of, read_matrix
from simulator.hardware.importers.matrix_graph import build
from simulator.hardware.topology import Topology

FORMAT = "xpu-smi topo -m"


def recognises(text: str) -> bool:
    """A header with XPU0."""
    header = header_of(text)
    return header is not None and header[1][0].startswith("XPU")


def read(text: str) -> Topology:
    """The host that the matrix shows. Raise :exc:`.dump.BadDump`."""
    return build(FORMAT, read_matrix(text), ["the rate and number of XPULinks", "the rates of PCIe links and NICs"])

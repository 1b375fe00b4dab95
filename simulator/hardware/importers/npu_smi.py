"""`npu-smi info -t topo`: a matrix of Ascend NPUs, whose header lacks the leading blank column."""

from __future__ import annotations

from simulator.hardware.importers.matrix import header_of, read_matrix
from simulator.hardware.importers.matrix_graph import build
from simulator.hardware.topology import Topology

FORMAT = "npu-smi info -t topo"


def recognises(text: str) -> bool:
    """A header with NPU0."""
    header = header_of(text)
    return header is not None and header[1][0].startswith("NPU")


def read(text: str) -> Topology:
    """The host that the matrix shows. Raise :exc:`.dump.BadDump`."""
    return build(FORMAT, read_matrix(text), ["which NPU it is, and so the rate of a link"])

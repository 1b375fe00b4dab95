"""`nvidia-smi topo -m`: a matrix of GPUs and NICs. NV# counts links; their rate is not told, nor the NICs'."""

from __future__ import annotations

from simulator.hardware.importers.matrix import header_of, read_matrix
from simulator.hardware.importers.matrix_graph import build
from simulator.hardware.topology import Topology

FORMAT = "nvidia-smi topo -m"


def recognises(text: str) -> bool:
    """A header with GPU0, and none of the blocks that rocm-smi prints around its matrices."""
    header = header_of(text)
    return (
        header is not None and header[1][0].startswith("GPU") and "Link Type between" not in text and "ROCm" not in text
    )


def read(text: str) -> Topology:
    """The host that the matrix shows. Raise :exc:`.dump.BadDump`."""
    untold = ["which GPU it is, and so the rate of a link", "the rates of PCIe links and NICs"]
    return build(FORMAT, read_matrix(text), untold)

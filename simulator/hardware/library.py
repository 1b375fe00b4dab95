"""Hardware by name: the files of hardware_profiles, or a user's own files of the same form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel

from simulator import documents
from simulator.hardware.accelerator import Accelerator, AcceleratorSheet
from simulator.hardware.cluster import Cluster, assemble
from simulator.hardware.collective import Timings
from simulator.hardware.curve import Curve
from simulator.hardware.fabric import Fabric
from simulator.hardware.failure_sheet import FailureSheet
from simulator.hardware.figure import Record
from simulator.hardware.nearest import nearest
from simulator.hardware.node import Node
from simulator.shipped import locate, shipped

_HOME = "hardware_profiles"
_TIMINGS = "collectives.yaml"
_NO_KERNELS = frozenset({"provenance.yaml", _TIMINGS})
"""Beside the curves of kernels: where the points were measured, and what collectives take."""


class Price(Record):
    """A dated list price, in USD per accelerator-hour. Prices move monthly."""

    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)] | None = None
    date: str
    source: str
    note: str = ""

    @property
    def value(self) -> float:
        """Middle of the range, or the one price there is."""
        return self.low if self.high is None else (self.low + self.high) / 2


class _Prices(RootModel[dict[str, Price]]):
    """What hardware_profiles/prices.yaml says, by accelerator."""


def load_accelerator(name: str, folder: Path) -> Accelerator:
    """The accelerator that *name* means, with its curves: its own, then those of the parts that its sheet names.

    A sheet that names none takes those of the measured part most like it, and of the parts that one names. A file
    ``accelerators/x.yaml`` of one's own may have its curves beside it, in ``measured/x/*.yaml``; they go before the
    shipped ones. A path is taken relative to *folder*. Raise :exc:`FileNotFoundError` with what there is, and
    :exc:`simulator.documents.InvalidDocument` with every problem of a file.
    """
    path = _find(name, "accelerators", "accelerator", folder)
    sheet = documents.load(path, AcceleratorSheet)
    curves: dict[str, tuple[Curve, ...]] = {}
    homes = dict.fromkeys((path.resolve().parent.parent, shipped(_HOME)))
    for part in (path.stem, *(sheet.curves or most_alike(sheet))):
        for home in homes:
            for file in _curve_files(home, part):
                curve = documents.load(file, Curve)
                curves[curve.kind] = (*curves.get(curve.kind, ()), curve)
    return Accelerator(path.stem, sheet, curves)


def measured_parts() -> dict[str, frozenset[str]]:
    """The shipped accelerators that have curves of their own, and the kinds of kernel that these price."""
    found = {
        path.stem: _curve_files(shipped(_HOME), path.stem) for path in shipped(_HOME, "accelerators").glob("*.yaml")
    }
    return {part: frozenset(file.stem for file in files) for part, files in sorted(found.items()) if files}


def most_alike(sheet: AcceleratorSheet) -> tuple[str, ...]:
    """Of the shipped parts with matmuls of their own, the one most like *sheet*, then those that its sheet names.

    See :mod:`.nearest` for what makes parts alike.
    """
    sheets = {
        part: documents.load(shipped(_HOME, "accelerators", f"{part}.yaml"), AcceleratorSheet)
        for part, kinds in measured_parts().items()
        if "gemm" in kinds
    }
    chosen = nearest(sheet, sheets)[0]
    return chosen, *sheets[chosen].curves


def _curve_files(home: Path, part: str) -> list[Path]:
    return [file for file in sorted((home / "measured" / part).glob("*.yaml")) if file.name not in _NO_KERNELS]


def load_node(name: str, folder: Path) -> Node:
    """The node type that *name* means, with the timings of its collectives; errors as of :func:`load_accelerator`.

    Timings of a part of one's own may lie in ``measured/PART`` beside the folder of the node.
    """
    path = _find(name, "nodes", "node", folder)
    node = documents.load(path, Node)
    links = node.scale_up
    if links.curves is None:
        return node
    timings = _timings(links.curves, path)
    collectives = {**timings.for_links(node.accelerator, links.bandwidth.value), **links.collectives}
    return node.model_copy(update={"scale_up": links.model_copy(update={"collectives": collectives})})


def _timings(part: str, node: Path) -> Timings:
    for home in (node.resolve().parent.parent, shipped(_HOME)):
        file = home / "measured" / part / _TIMINGS
        if file.is_file():
            return documents.load(file, Timings)
    known = sorted(file.parent.name for file in shipped(_HOME, "measured").glob(f"*/{_TIMINGS}"))
    raise FileNotFoundError(f"{node.name}: no {_TIMINGS} of {part!r}; there are timings of {', '.join(known)}")


def load_fabric(name: str, folder: Path) -> Fabric:
    """The fabric that *name* means; errors as of :func:`load_accelerator`."""
    return documents.load(_find(name, "fabrics", "fabric", folder), Fabric)


def load_failures(name: str, folder: Path) -> FailureSheet:
    """How often parts fail, by the name of such a file; errors as of :func:`load_accelerator`."""
    return documents.load(_find(name, "failures", "failure sheet", folder), FailureSheet)


def build_cluster(node_name: str, fabric_name: str, accelerators: int, folder: Path) -> Cluster:
    """*accelerators* of them, in whole nodes, on a fabric. Raise as the loaders do; :exc:`ValueError` for the count.

    A node of one's own finds its accelerator in the folder ``accelerators`` beside its own, before any other.
    """
    node = load_node(node_name, folder)
    home = _find(node_name, "nodes", "node", folder).resolve().parent.parent
    beside = home / "accelerators" / f"{node.accelerator}.yaml"
    own = home != shipped(_HOME) and beside.is_file()
    accelerator = load_accelerator(str(beside) if own else node.accelerator, folder)
    return assemble(node, accelerator, load_fabric(fabric_name, folder), accelerators)


def price(accelerator_id: str) -> Price | None:
    """The shipped list price of an accelerator, where one was found."""
    return documents.load(shipped(_HOME, "prices.yaml"), _Prices).root.get(accelerator_id)


def _find(name: str, folder_name: str, kind: str, folder: Path) -> Path:
    return locate(name, kind=kind, folder=folder, shipped_in=(_HOME, folder_name), suffixes=(".yaml",))

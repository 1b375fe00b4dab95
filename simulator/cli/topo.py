"""`rackcast topo`: what a dump tells of a machine or a fabric, and files made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.guard import Answer, conclude, say
from simulator.cli.options import AsJson

if TYPE_CHECKING:
    from simulator.hardware.topology import Topology


def topo(
    dump: Annotated[
        Path,
        typer.Argument(
            metavar="DUMP",
            help="Output of nvidia-smi topo -m, npu-smi, xpu-smi, rocm-smi, NCCL, ibnetdiscover, hwloc, ASTRA-sim, ...",
        ),
    ],
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="Which accelerator it is, such as h200-sxm.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a node file; a fabric goes beside it, as NAME-fabric.yaml."),
    ] = None,
    astra: Annotated[
        Path | None, typer.Option("--astra", metavar="FILE", help="Write the network for ASTRA-sim (analytical).")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read the dump of a topology and say what it holds.

    Accelerators, links, NICs and their affinity, NUMA nodes, switches; what is unknown and what was assumed.
    """
    conclude(lambda: _answer(dump, accelerator, out, astra, png), as_json)


def _answer(dump: Path, accelerator: str | None, out: Path | None, astra: Path | None, png: Path | None) -> Answer:
    from simulator.hardware.description import describe
    from simulator.hardware.importers import import_topology
    from simulator.hardware.library import load_accelerator
    from simulator.hardware.link_sheet import with_rates

    part = load_accelerator(accelerator, Path()).id if accelerator is not None else None
    topology = with_rates(import_topology(dump), part)
    files: list[tuple[Path, str | bytes]] = []
    if out is not None:
        files += _profiles(topology, accelerator, dump, out)
    if astra is not None:
        files.append((astra, _network(topology, dump, part)))
    found = describe(topology)
    if png is not None:
        from simulator.report.fabric_chart import fabric_png

        files.append((png, fabric_png(topology, found, dump.name)))
    for path, content in files:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if files:
        say(f"wrote {', '.join(str(path) for path, _ in files)}")
    from simulator.report.topology_table import topology_table

    return Answer(found | {"files": [str(path) for path, _ in files]}, lambda: topology_table(found))


def _profiles(topology: Topology, accelerator: str | None, dump: Path, out: Path) -> list[tuple[Path, str | bytes]]:
    """The node and the fabric, as far as the dump tells of each."""
    from simulator.documents import InvalidDocument, Problem
    from simulator.hardware.fabric_profile import fabric_yaml
    from simulator.hardware.node_profile import node_yaml
    from simulator.hardware.profile import CannotProfileError

    fabric = fabric_yaml(topology, dump.name)
    switches_alone = not topology.of("accelerator") or (
        topology.dimensions[:1] and topology.dimensions[0].kind == "cable"
    )
    if switches_alone and fabric is not None:
        return [(out, fabric)]
    try:
        if accelerator is None:
            raise CannotProfileError("a node file needs --accelerator NAME: no dump tells what a scenario needs of it")
        node = node_yaml(topology, accelerator, dump.name)
    except CannotProfileError as error:
        raise InvalidDocument([Problem(str(dump), None, "", str(error))]) from None
    beside = out.with_name(f"{out.stem}-fabric{out.suffix or '.yaml'}")
    return [(out, node), *([(beside, fabric)] if fabric is not None else [])]


def _network(topology: Topology, dump: Path, part: str | None) -> str:
    from simulator.documents import InvalidDocument, Problem
    from simulator.hardware.export import astra_sim
    from simulator.hardware.link_sheet import with_pcie
    from simulator.hardware.survey import layers

    found, remark = with_pcie(layers(topology), part) if part else (layers(topology), "")
    comment = f"Imported from {dump.name} ({topology.format}) by rackcast topo.\n{remark}".rstrip()
    try:
        return astra_sim(found, comment)
    except ValueError as error:
        raise InvalidDocument([Problem(str(dump), None, "", str(error))]) from None

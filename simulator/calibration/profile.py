"""A part's set: curves, timings, an accelerator and a node that forecasts can name, made of the points of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator import documents
from simulator.calibration import findings
from simulator.calibration.collective_timings import OPERATIONS, Form, even, fit_form, groups, skewed_errors, timings
from simulator.calibration.documents import curve_yaml, timings_yaml
from simulator.calibration.identity import identify
from simulator.calibration.machine import Machine
from simulator.calibration.node_file import node_tree
from simulator.calibration.point import Point
from simulator.calibration.pricing import priced_s
from simulator.calibration.provenance import provenance
from simulator.calibration.refit import Fit, refit
from simulator.calibration.sheet import sheet_tree
from simulator.calibration.stand_ins import OWN, as_public
from simulator.calibration.store import Stored, read_all
from simulator.hardware.accelerator import Accelerator, AcceleratorSheet
from simulator.hardware.collective import Timings
from simulator.hardware.figure import Figure, Share
from simulator.hardware.library import load_accelerator, measured_parts, most_alike
from simulator.shipped import shipped

_PROFILES = "hardware_profiles"
REFERENCE = "h200-sxm"
"""The part whose set is complete, and on whose host the launches of the shipped sheets were measured."""
SOURCE = "rackcast calibrate, points beside this file (provenance.yaml)"


@dataclass(frozen=True, slots=True)
class Profile:
    """What was made of a run, for the report and for people."""

    part: str
    like: str
    """The part whose curves gave the forms, and whose figures stand in for what was not measured."""
    clock_s: float
    fits: tuple[Fit, ...]
    points: tuple[Point, ...]
    accelerator: Accelerator
    """With the fitted curves."""
    forms: tuple[Form, ...]
    collectives: dict[str, tuple[tuple[float, float], ...]]
    """(bytes, seconds) by operation, among all GPUs."""
    skewed: tuple[tuple[int, float], ...]
    """(bytes, error of the price) of the skewed all-to-all."""
    files: tuple[Path, ...]


def part_of(machine: Machine) -> str:
    """The id of the accelerator that *machine* has, shipped or new."""
    return identify(machine, _sheets())


def make_profile(tables: Sequence[Stored], machine: Machine, home: Path) -> Profile:
    """Fit curves to *tables* and write the set of the part into *home*, a folder like hardware_profiles."""
    points = tuple(point for table in tables for point in table.points)
    part, clock = part_of(machine), findings.clock_s(points)
    like, accelerator, sheet = _begin(part, points, machine, clock)
    stood_in = _stood_in(points, accelerator, clock)
    fits: list[Fit] = []
    for kind in sorted(accelerator.curves, key=lambda kind: (kind != "fill", kind)):
        found = refit(kind, stood_in, accelerator, clock, SOURCE)
        if found is not None:
            fitted = replace(accelerator, curves={**accelerator.curves, kind: (found.curve,)})
            found = _sustained(found, findings.sustained(points, kind, fitted))
            fits.append(found)
            accelerator = replace(fitted, curves={**fitted.curves, kind: (found.curve,)})
    node, links = node_tree(part, like, points, machine)
    files = {f"measured/{part}/{fit.curve.kind}.yaml": curve_yaml(fit.curve) for fit in fits}
    files[f"measured/{part}/provenance.yaml"] = documents.dumped(provenance(tables, clock))
    files[f"accelerators/{part}.yaml"] = documents.dumped(sheet)
    files[f"nodes/{machine.gpus}x-{part}.yaml"] = documents.dumped(node)
    timed: dict[str, tuple[tuple[float, float], ...]] = {}
    ranks = max(groups(points), default=0)
    if ranks:
        timed = {operation: even(points, operation, ranks, clock) for operation in OPERATIONS}
        known = _known_timings(part)
        files[f"measured/{part}/collectives.yaml"] = timings_yaml(timings(points, part, links, clock, known, SOURCE))
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    forms = tuple(fit_form(operation, timed[operation]) for operation in OPERATIONS if operation in timed)
    opposite = node["scale_up"].get("opposite", {"value": 0.0})["value"]
    skewed = tuple(skewed_errors(points, timed["all_to_all"], ranks, clock, opposite)) if timed else ()
    written = tuple(home / name for name in sorted(files))
    return Profile(part, like, clock, tuple(fits), stood_in, accelerator, forms, timed, skewed, written)


def _begin(
    part: str, points: Sequence[Point], machine: Machine, clock: float
) -> tuple[str, Accelerator, dict[str, Any]]:
    """The part that gives the forms, the accelerator to fit, and its sheet as a tree."""
    sheets = _sheets()
    if part in sheets:
        like = part if part in measured_parts() else (sheets[part].curves or (REFERENCE,))[0]
    else:
        like = _most_alike(points, machine, clock)
    ratios = (1.0, 1.0) if part in sheets else _ratios(points, load_accelerator(like, Path()), clock)
    launch_s, their_s = findings.launch_s(points), findings.launch_s(_twins(REFERENCE)[0])
    host = launch_s / their_s if launch_s and their_s else 1.0
    tree = sheet_tree(part, like, sheets.get(part) or sheets[like], machine, (*ratios, host))
    sheet = AcceleratorSheet.model_validate(tree)
    forms = load_accelerator(part if part in sheets else like, Path())
    return like, Accelerator(part, sheet, forms.curves), tree


def _ratios(points: Sequence[Point], like: Accelerator, clock: float) -> tuple[float, float]:
    """How much faster than *like* the part is, in arithmetic and in memory: by its best matmul and its largest copy."""
    matmul = max((p for p in points if p.kind == "gemm" and p.dtype == "bf16"), key=lambda p: p.flops / p.seconds)
    copy = max((p for p in points if p.kind == "copy"), key=lambda p: p.bytes)
    return tuple(priced_s(p, like) / (p.seconds - clock) for p in (matmul, copy))  # type: ignore[return-value]


def _most_alike(points: Sequence[Point], machine: Machine, clock: float) -> str:
    """The measured part most like a GPU without a sheet, by rates as an H200's shares of peak make them peaks."""
    sheets = _sheets()
    like = load_accelerator(REFERENCE, Path())
    tree = sheet_tree("", REFERENCE, sheets[REFERENCE], machine, (*_ratios(points, like, clock), 1.0))
    return most_alike(AcceleratorSheet.model_validate(tree))[0]


def _sustained(fit: Fit, share: float | None) -> Fit:
    """*fit* with the *share* of its rate that its kind was seen to keep within a step, where it was measured."""
    if share is None:
        return fit
    source = "rackcast calibrate: a layer's kernels in a row, beside what this curve says of each alone"
    figure = Figure[Share](value=round(share, 3), source=source, grade="measured")
    return replace(fit, curve=fit.curve.model_copy(update={"sustained": figure}))


def _stood_in(points: Sequence[Point], accelerator: Accelerator, clock: float) -> tuple[Point, ...]:
    """*points* with those of own kernels turned into the kernels that the forms were measured with."""
    own = [point for point in points if point.name.startswith(OWN) and point.kind in accelerator.curves]
    found = [point for point in points if not point.name.startswith(OWN)]
    for part in sorted({accelerator.curves[point.kind][0].part for point in own}):
        twins, their_clock = _twins(part)
        mine = [point for point in own if accelerator.curves[point.kind][0].part == part]
        found += as_public(mine, twins, load_accelerator(part, Path()), (clock, their_clock))
    return tuple(found)


def _twins(part: str) -> tuple[tuple[Point, ...], float]:
    stored = read_all(shipped(_PROFILES, "measured", part, "points"))
    points = tuple(point for table in stored for point in table.points)
    return points, findings.clock_s(points)


def _known_timings(part: str) -> Timings | None:
    file = shipped(_PROFILES, "measured", part, "collectives.yaml")
    return documents.load(file, Timings) if file.is_file() else None


def _sheets() -> dict[str, AcceleratorSheet]:
    files = sorted(shipped(_PROFILES, "accelerators").glob("*.yaml"))
    return {file.stem: documents.load(file, AcceleratorSheet) for file in files}

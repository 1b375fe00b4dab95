"""Takes collectives that `rackcast calibrate` timed into the shipped set of their part.

python tools/ship_collectives.py PROFILES

PROFILES is what calibrate wrote. Its points replace the shipped ones of collectives; where the shipped curve ends
before them, and the library did the same there, the curve goes on by them. The provenance of the table goes along. A
run of fewer sizes of groups than the shipped points have is refused.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simulator.calibration.collective_timings import groups, prolonged, timings
from simulator.calibration.store import Stored, read
from simulator.documents import load
from simulator.documents.writing import WIDTH
from simulator.hardware.collective import Run, Timings
from simulator.shipped import shipped

SOURCE = "beyond them: own measurement"
TABLE = "collectives.parquet"
RUN = re.compile(r'source: "[^"]*"\n *points: \[\[.*?\]\]', re.DOTALL)
INDENT = " " * 6
JOINT = "\0"
"""Stands for a space at which no line is to break."""


def main() -> None:
    """Merge the set of the one part that PROFILES has collectives of. All is read before anything is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path)
    profiles = parser.parse_args().profiles
    found = sorted(profiles.glob(f"measured/*/points/{TABLE}"))
    if len(found) != 1:
        parser.error(f"{profiles} has collectives of {len(found)} parts, not of one")
    theirs = found[0].parents[1]
    own, ours = read(found[0]), shipped("hardware_profiles", "measured", theirs.name)
    if own is None:
        parser.error(f"{found[0]}: no table of calibrate")
    if not (ours / "collectives.yaml").is_file():
        parser.error(f"no collectives of {theirs.name} are shipped that these could go on")
    if lacking := missing(own, read(ours / "points" / TABLE)):
        parser.error(f"{found[0]} lacks groups of {', '.join(map(str, lacking))}, which the shipped points have")
    told = _yaml().load(theirs / "provenance.yaml")
    known = load(ours / "collectives.yaml", Timings)
    made = timings(own.points, known.part, known.bandwidth, float(told["clock_s"]), None, SOURCE)
    table = told["tables"]["collectives"]
    write_runs(ours / "collectives.yaml", prolonged(known, made, SOURCE))
    shutil.copyfile(found[0], ours / "points" / TABLE)
    write_provenance(ours / "provenance.yaml", table)


def missing(own: Stored, old: Stored | None) -> list[int]:
    """Numbers of ranks that *old* has points of and *own* has not."""
    return sorted(set(groups(old.points)) - set(groups(own.points))) if old else []


def write_runs(path: Path, merged: Timings) -> None:
    """Put the points and sources of *merged* into *path*, whose other lines stay."""
    runs = (run for runs in merged.collectives.values() for run in runs)
    path.write_text(RUN.sub(lambda _: _lines(next(runs)), path.read_text()))


def _lines(run: Run) -> str:
    """Source and points of *run* as they stand in the file, no pair broken."""
    pairs = (f"[{int(size)},{JOINT}{float(f'{seconds:.6g}')!r}]" for size, seconds in run.points)
    points = textwrap.wrap(f"points:{JOINT}[{', '.join(pairs)}]", WIDTH - len(INDENT), subsequent_indent="  ")
    lines = (f'source: "{run.source}"', *(INDENT + line for line in points))
    return "\n".join(lines).replace(JOINT, " ")


def write_provenance(path: Path, table: Any) -> None:
    """Say of the table of collectives what *table* says."""
    tree = _yaml().load(path)
    tree["tables"]["collectives"] = table
    _yaml().dump(tree, path)


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    return yaml


if __name__ == "__main__":
    main()

"""Ends of concurrent transfers beside SimGrid's, an independent max-min solver (Debian's python3-simgrid).

A transfer at full speed S keeps a link of capacity C busy to S / C; a link of its own with capacity S holds a SimGrid
flow to the same. Skipped where no interpreter at hand knows SimGrid.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import simpy

from simulator.engine.links import Links

SCRIPT = Path(__file__).with_name("simgrid_flows.py")
FULL_BYTES_PER_S = 50e9


@cache
def interpreter() -> str | None:
    for found in (sys.executable, "/usr/bin/python3"):
        if Path(found).exists() and not subprocess.run([found, "-c", "import simgrid"], capture_output=True).returncode:
            return found
    return None


def by_simgrid(capacities: Mapping[str, float], flows: Sequence[tuple[list[str], int]]) -> list[float]:
    python = interpreter()
    if python is None:
        pytest.skip("no Python with SimGrid: install Debian's python3-simgrid to compare with it")
    own = {f"own {number}": FULL_BYTES_PER_S for number in range(len(flows))}
    listed = [{"links": [*links, f"own {n}"], "bytes": size} for n, (links, size) in enumerate(flows)]
    asked = json.dumps({"links": {**capacities, **own}, "flows": listed})
    run = subprocess.run([python, str(SCRIPT)], input=asked, capture_output=True, text=True, check=True)
    ends: list[float] = json.loads(run.stdout)
    return ends


def by_links(capacities: Mapping[str, float], flows: Sequence[tuple[list[str], int]]) -> list[float]:
    env = simpy.Environment()
    links, ends = Links(env), [0.0] * len(flows)

    def one(number: int, crossed: list[str], size: int) -> simpy.events.ProcessGenerator:
        busy = {link: size / capacities[link] * 1e9 for link in crossed}
        yield links.transfer(round(size / FULL_BYTES_PER_S * 1e9), busy)
        ends[number] = env.now / 1e9

    for number, (crossed, size) in enumerate(flows):
        env.process(one(number, crossed, size))
    env.run()
    return ends


@pytest.mark.parametrize("seed", range(12))
def test_ends_are_simgrids(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"link {number}" for number in range(8)]
    capacities = {name: FULL_BYTES_PER_S * float(rng.uniform(1, 4)) for name in names}
    flows = [
        ([names[link] for link in rng.choice(8, rng.integers(1, 5), replace=False)], int(rng.integers(10**8, 10**10)))
        for _ in range(40)
    ]
    assert by_links(capacities, flows) == pytest.approx(by_simgrid(capacities, flows), rel=1e-6)


def test_two_flows_by_hand() -> None:
    # Both cross the narrow link, 75 GB/s: 37.5 each, the first done at 2 s; the second has 75 GB left at its 50 GB/s.
    capacities, flows = {"narrow": 75e9}, [(["narrow"], 75 * 10**9), (["narrow"], 150 * 10**9)]
    assert by_links(capacities, flows) == pytest.approx([2.0, 3.5])
    assert by_simgrid(capacities, flows) == pytest.approx([2.0, 3.5])

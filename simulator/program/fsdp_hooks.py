"""What FSDP2's hooks take the host: Python around every unit, which runs eagerly in compiled models as well.

Counted in launches of a framework's eager layer that take as long, for each group of parameters that is gathered
together and for each parameter in it: a layer of 9 parameters takes 50 in a pass and 31 for its reduction on the host
of two H200 (hardware_profiles/measured/h200-sxm/host-steps-2026-11-30.json), less where it has fewer
(`tests/validation/measure_fsdp_host.py`, without a GPU, where calls into the libraries weigh more beside a launch, so
that it tells only the share of parameters). The launches of copies are among them, those of collectives are not. A unit
of several groups is taken to run the hooks of each.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.parallel.sharding import ShardGroup

GATHERED_FORWARD = 36.0, 1.6
"""Gathering, copying out and freeing in a forward pass: launches a group, and a parameter."""
GATHERED_BACKWARD = 35.0, 1.7
REDUCED = 16.0, 1.7
"""Reducing gradients, of which parameters that are trained count."""


def gathered(groups: Iterable[ShardGroup], *, forward: bool) -> float:
    """Launches that the hooks around a pass over *groups* take as long as."""
    group, parameter = GATHERED_FORWARD if forward else GATHERED_BACKWARD
    return sum(group + parameter * one.parameters for one in groups)


def reduced(group: ShardGroup) -> float:
    """The same of what the reduction of *group* adds."""
    base, parameter = REDUCED
    return base + parameter * len(group.trained)

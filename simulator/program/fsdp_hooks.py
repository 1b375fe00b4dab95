"""What FSDP2's hooks take the host: Python around every unit, which runs eagerly in compiled models as well.

Counted in launches of a framework's eager layer that take as long, for each group of parameters that is gathered
together and for each parameter in it (torch 2.13, `tests/validation/measure_fsdp_host.py`, which needs no GPU: medians
and least times of 9 and 27 parameters lie within a tenth). The launches of copies are among them, those of
collectives are not. A unit of several groups is taken to run the hooks of each.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.parallel.sharding import ShardGroup

GATHERED_FORWARD = 90.0, 1.6
"""Gathering, copying out and freeing in a forward pass: launches a group, and a parameter."""
GATHERED_BACKWARD = 61.0, 1.7
REDUCED = 31.0, 1.7
"""Reducing gradients, of which parameters that are trained count."""


def gathered(groups: Iterable[ShardGroup], *, forward: bool) -> float:
    """Launches that the hooks around a pass over *groups* take as long as."""
    group, parameter = GATHERED_FORWARD if forward else GATHERED_BACKWARD
    return sum(group + parameter * one.parameters for one in groups)


def reduced(group: ShardGroup) -> float:
    """The same of what the reduction of *group* adds."""
    base, parameter = REDUCED
    return base + parameter * len(group.trained)

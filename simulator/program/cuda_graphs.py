"""CUDA graphs: parts of a layer that are captured once and replayed in one launch.

Megatron-LM has Transformer Engine capture them (`--cuda-graph-impl transformer_engine`, `--cuda-graph-scope`,
`make_graphed_callables`): each stretch of captured operators is one graph forward and one backward, which also holds
what runs again within it. To the host either is a copy of what comes in, to where the graph reads it, and a replay,
each called like any other module. Between kernels of a graph the device waits less than between two launches. All
graphs share a pool of memory, which nothing outside them can use.

`full_iteration` captures all passes of a step at once (`FullCudaGraphWrapper`), the update not among them: the host
launches one graph and waits for no number of rows. Experts' rows are in buffers of a fixed size then
(`moe_expert_rank_capacity_factor`, 1.5 times the mean in Megatron-Bridge's recipes), of which the kernels read what is
filled; the room beyond is not in the ledger.

Left out: further inputs of a stretch, and the graphs' own structures. What lies behind the last layer, and
multi-token-prediction modules, are launched kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from simulator.engine.task import Quantity
from simulator.hardware.accelerator import Accelerator
from simulator.model.operator import Kernel
from simulator.model.recompute import JOINS
from simulator.program.costs import Costs, Priced
from simulator.program.layer_code import Rerun
from simulator.program.step import Round, Step

_LAUNCHES = 2
"""A copy and a replay."""
_ROUTED, _SHARED = "route", "shared_experts"
_PREPARED = ("count_rows", "permute", "preprocess")


def captured(names: Sequence[str], scopes: Iterable[str]) -> frozenset[int]:
    """Positions of a layer's operators, by their *names* in order, that *scopes* capture.

    attn: everything until the mixer's result is added; mlp: the rest of a layer without routed experts; moe_router:
    from there to the choice of experts, and shared experts; moe_preprocess: rows put in the order of the exchange.
    """
    joined = 1 + next(number for number, name in enumerate(names) if name in JOINS)
    routed = 1 + names.index(_ROUTED) if _ROUTED in names else 0
    shared = {number for number, name in enumerate(names) if name.startswith(_SHARED)}
    prepared = set(takewhile(lambda number: names[number] in _PREPARED, range(routed, len(names)))) if routed else set()
    found = {
        "attn": range(joined),
        "mlp": range(joined, len(names) if not routed else 0),
        "moe_router": shared.union(range(joined, routed)) if routed else (),
        "moe_preprocess": prepared,
    }
    return frozenset(number for scope in scopes for number in found[scope])


class Graphs:
    """Captures what *scopes* name of layers, priced by *costs* on *accelerator*."""

    def __init__(self, scopes: frozenset[str], accelerator: Accelerator, costs: Costs) -> None:
        self._scopes = scopes
        self._closer_ns = (accelerator.kernel_gap_s - accelerator.graph_gap_s) * 1e9
        self._costs = costs

    def capture(
        self, steps: Sequence[Step], reruns: Sequence[Rerun], input_bytes: Quantity
    ) -> tuple[list[Step], list[Rerun]]:
        """*steps* of a layer whose input is of *input_bytes*, and what of it runs again, as graphs have them."""
        inside = captured([step.name for step in steps], self._scopes)
        found = [self._inside(step) if number in inside else step for number, step in enumerate(steps)]
        first_use = [number for number in sorted(inside) if not steps[number].name.startswith(_SHARED)]
        for number in first_use:
            size = steps[number - 1].output_bytes if number else input_bytes
            if number - 1 not in inside:
                found[number] = replace(found[number], forward=found[number].forward + self._launch(size))
            if number + 1 not in inside:
                size = steps[number].output_bytes
                found[number] = replace(found[number], backward=found[number].backward + self._launch(size))
        again = [self._again(rerun) if inside.issuperset(rerun.stretch.positions) else rerun for rerun in reruns]
        return found, again

    def _inside(self, step: Step) -> Step:
        return replace(
            step,
            forward=self._closer(step.forward),
            backward=self._closer(step.backward),
            rounds=tuple(Round(self._closer(one.compute), one.move) for one in step.rounds),
            rounds_back=tuple(Round(self._closer(one.compute), one.move) for one in step.rounds_back),
            parted=None,
            graphed=True,
        )

    def _again(self, rerun: Rerun) -> Rerun:
        return rerun if rerun.restore is None else replace(rerun, restore=self._inside(rerun.restore))

    def _closer(self, priced: Priced) -> Priced:
        """The same kernels, none of them launched by the host."""
        left = np.maximum(0, priced.duration_ns - round(priced.launches * self._closer_ns))
        return replace(priced, duration_ns=int(left) if left.ndim == 0 else left, launches=0, looped=0)

    def _launch(self, size: Quantity) -> Priced:
        """The host's part, and the device's copy of *size* bytes."""
        copy = self._costs.price(Kernel("copy", 0.0, 2.0 * float(np.max(size))))
        return replace(copy, launches=_LAUNCHES)

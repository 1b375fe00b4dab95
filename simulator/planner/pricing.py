"""Pricing of operators for other splits than a job's own: networks, workloads and plans of layers of each.

Operators are priced as the lowering prices them, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.dispatch import AROUND_EXCHANGE
from simulator.model.recompute import NOTHING, WHOLE, LayerPlan, Recompute, Stack, plan_layer
from simulator.model.split import share_model
from simulator.parallel.folding import apart
from simulator.parallel.mesh import Mesh
from simulator.parallel.placement import Placement
from simulator.parallel.sharding import Adapter
from simulator.planner.exchange import aligned
from simulator.planner.passes import Passes
from simulator.program.costs import Costs
from simulator.program.job import Job
from simulator.program.network import Network
from simulator.program.step import Pricer, Step

_RECOMPUTE = (NOTHING, WHOLE)


class Pricing:
    """For splits of *job*'s model on its cluster; *costs* are those of a forecast unless others are given."""

    def __init__(self, job: Job, costs: Costs | None = None) -> None:
        self.job = job
        self._costs = costs or Costs(job.cluster.accelerator, job.workload.execution, per_expert=job.per_expert)
        self._sizes = [level.size for level in job.cluster.levels]
        self._shared = cache(lambda tp, etp: share_model(job.architecture, tp, etp))

    @property
    def launch_s(self) -> float:
        """Host time of a launch."""
        return self._costs.launch_ns / 1e9

    @property
    def looped_launch_s(self) -> float:
        """Host time of a launch in a library's loop over experts."""
        return self._costs.looped_launch_ns / 1e9

    def own(self, tp: int, etp: int) -> Architecture:
        """The model as one rank of *tp* and *etp* holds it."""
        return self._shared(tp, etp)

    def workload(self, tp: int, cp: int, etp: int, sequences: int, recompute: Recompute = NOTHING) -> Workload:
        """The workload of a split, of as many *sequences* like the job's own one.

        Weights in fp8 are taken to be cast already, which is so with ZeRO-1 alone. Of what is multiplied in fp8 no
        original is kept, but where the job's own *recompute* discards it. Rows of no expert are not masked, as they
        are where experts lie on several ranks.
        """
        base, float8 = self.job.workload, self.job.workload.float8
        lengths = base.sequence_lengths * sequences
        originals = float8.originals if float8 and recompute == self.job.recompute else frozenset()
        cast = replace(float8, kept=True, originals=originals & recompute.discarded) if float8 else None
        return replace(base, sequence_lengths=lengths, tp=tp, cp=cp, etp=etp, float8=cast, spread_experts=True)

    def network(self, mesh: Mesh, group: int) -> Network:
        """The network of one *group*; of none where neighbouring groups lie differently on the fabric."""
        mesh = mesh if aligned(group, self._sizes) else Mesh()
        folding = apart(mesh.groups(), mesh.stage_ranks)
        return Network(self.job.cluster, Placement(mesh, folding, self._sizes), mesh)

    def pricer(self, workload: Workload, network: Network) -> Pricer:
        """What prices operators of *workload* whose ranks talk over *network*."""
        trained = self.job.trained.lora_rank is None
        return Pricer(self._costs, network, tokens=workload.tokens, all_trained=trained)

    def plan(self, parts: Iterable[Iterable[Operator]], recompute: Recompute, *, exchanges: bool) -> LayerPlan:
        """The plan of a layer, whose checkpoint stops early: one that runs on takes longer.

        Of Megatron-LM's dispatchers, which differ by the way of exchange, what moves rows on a card is left out.
        """
        if self.job.workload.megatron:
            parts = [[operator for operator in part if operator.name not in AROUND_EXCHANGE] for part in parts]
        compiled = self.job.workload.execution == "compiled"
        return plan_layer(parts, recompute, Stack(stops_early=True, compiled=compiled, exchanges=exchanges))

    def by_layer(self, edges: npt.NDArray[np.int64], passes: Callable[[Recompute], Passes], recompute: int) -> Passes:
        """Passes of all layers, each as its place in its stage has it recomputed; *recompute* counts as in a split."""
        what = (*_RECOMPUTE, self.job.recompute)[recompute]
        if what.every <= 1:
            return passes(what)
        positions = [position for layers in np.diff(edges) for position in range(layers)]
        chosen = np.array([what.of_layer(position) != NOTHING for position in positions])
        return passes(WHOLE).where(chosen, passes(NOTHING))


class Steps:
    """Steps of operators that are over a rank's own tokens, each priced once by *pricer*."""

    def __init__(self, pricer: Pricer) -> None:
        self._pricer = pricer
        self._known: dict[tuple[Operator, frozenset[tuple[str, Adapter]], bool], Step] = {}

    def of(self, operator: Operator, adapters: dict[str, Adapter], *, again: bool = False) -> Step:
        """*operator*, which may run *again*, with the *adapters* of its layer."""
        key = operator, frozenset(adapters.items()), again
        if key not in self._known:
            self._known[key] = self._pricer.step(operator, adapters, None, again=again)
        return self._known[key]


def reruns(plan: LayerPlan, number: int) -> bool:
    """Whether the operator at *number* runs again, and its result is not kept."""
    return any(number in s.positions and number not in s.results for s in plan.stretches)


def is_loose(plan: LayerPlan, number: int) -> bool:
    """Whether its result is kept for running others again alone."""
    return any(number in stretch.loose for stretch in plan.stretches)

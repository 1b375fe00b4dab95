"""A training step as programs, one a pipeline stage: micro-batches in the schedule's order, then the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import lcm

import numpy as np
import numpy.typing as npt

from simulator.parallel.placement import Placement
from simulator.program.activation_offload import ActivationOffload
from simulator.program.activation_swap import ActivationSwap
from simulator.program.batch_steps import BatchSteps, LayerSteps, TokenSteps
from simulator.program.costs import Costs
from simulator.program.data_parallel import data_parallel
from simulator.program.drive_update import DriveUpdate
from simulator.program.drives import Drives
from simulator.program.emitter import Emitter
from simulator.program.framework_host import framework_host
from simulator.program.host_memory import HostMemory
from simulator.program.host_update import HostUpdate
from simulator.program.job import Job
from simulator.program.layer_code import Later
from simulator.program.layout import lay_out
from simulator.program.network import Network
from simulator.program.optimizers import rules
from simulator.program.schedules import Pass, enough, schedules
from simulator.program.set_up import set_up
from simulator.program.stage import StageProgram, StageWriter
from simulator.program.update import Update
from simulator.program.weaving import woven
from simulator.routing.outcome import Lengths

_REMEMBERED = 2
"""Programs of different numbers of micro-batches: what was accounted for may be simulated next."""


class TrainingStep:
    """Lowers a job. *like*: another one's lowering, whose job differs in what it swaps alone; its prices are taken."""

    def __init__(self, job: Job, like: TrainingStep | None = None) -> None:
        self.job = job
        priced = partial(Costs, job.cluster.accelerator, job.workload.execution, per_expert=job.per_expert)
        plain = priced()
        costs = priced(captured=True) if job.captured else plain
        self.stages = job.mesh.pp
        alike: Sequence[StageLowering | None] = [None] * job.mesh.pp if like is None else like.lowered
        self.lowered: list[StageLowering] = [
            StageLowering(job, costs, plain, number, known) for number, known in enumerate(alike)
        ]
        self._written: dict[int, tuple[StageProgram, ...]] = {}

    def held_at_once(self, micro_batches: int) -> int:
        """Micro-batches, of so many in all, that memory is the same for as for all of them."""
        return enough(self.job.schedule, self.stages, micro_batches, self.job.pipeline.chunks)

    @property
    def round(self) -> int:
        """Micro-batches after which a filled pipeline does the same again."""
        return lcm(self.job.pipeline.round, self.unlike)

    @property
    def unlike(self) -> int:
        """Micro-batches that are unlike: a step goes through them in turn."""
        return unlike(self.job)

    def layer_steps(self, stage: int) -> list[LayerSteps]:
        """The priced layers of *stage* in the first of the unlike micro-batches."""
        return self.lowered[stage].layers

    def programs(self, micro_batches: int) -> tuple[StageProgram, ...]:
        """The step with *micro_batches* of them, a program for each stage."""
        if micro_batches not in self._written:
            if len(self._written) == _REMEMBERED:
                del self._written[next(iter(self._written))]
            self._written[micro_batches] = tuple(stage.program(micro_batches) for stage in self.lowered)
        return self._written[micro_batches]


def unlike(job: Job) -> int:
    """Micro-batches that are unlike, those that go together counted as one."""
    return lcm(len(job.micro_batches), job.together) // job.together


class StageLowering:
    """Lowers one pipeline stage, with prices of what is *like* it.

    *costs* are of passes, *update_costs* of what is done to gradients and parameters, which no graph holds.
    """

    def __init__(self, job: Job, costs: Costs, update_costs: Costs, number: int, like: StageLowering | None) -> None:
        self._job = job
        self._costs = costs
        self._update_costs = update_costs
        self._number = number
        levels = [level.size for level in job.cluster.levels]
        self._network = Network(job.cluster, Placement(job.mesh, job.folding, levels, number), job.mesh)
        self._host = HostMemory(job.cluster, job.folding.behaviours)
        way = job.offload.drives
        self._drives = None if way is None else Drives(job.cluster, self._host, way)
        self._layout = lay_out(job, number)
        alone = [replace(job, micro_batches=(batch,)) for batch in job.micro_batches]
        shared = costs, self._network, self._layout, number
        tokens: dict[Lengths, TokenSteps] = {}
        self.batches: list[BatchSteps] = []
        alike: Sequence[BatchSteps | None] = [None] * len(alone) if like is None else like.batches
        for one, known in zip(alone, alike, strict=True):
            lengths = one.micro_batches[0].lengths
            if lengths not in tokens:
                tokens[lengths] = TokenSteps(one, *shared, None if known is None else known.tokens)
            self.batches.append(BatchSteps(one, *shared, tokens[lengths], known))
        self._operators = tokens[job.micro_batches[0].lengths].operators

    @property
    def layers(self) -> list[LayerSteps]:
        """Its priced layers in the first of the unlike micro-batches."""
        return self.batches[0].layers

    def program(self, micro_batches: int) -> StageProgram:
        """The stage's passes in the schedule's order, then the update."""
        job, costs = self._job, self._costs
        framework = framework_host(
            job.cluster.accelerator.launch_s("eager"),
            job.workload.execution,
            fsdp2=job.fsdp2,
            ddp=job.zero == 0,
            tp=job.mesh.tp,
        )
        emitter = Emitter(
            costs.launch_ns, costs.looped_launch_ns, self._pace(), captured=job.captured, framework=framework
        )
        sharding = data_parallel(
            job,
            emitter,
            self._update_costs,
            self._network,
            self._layout,
            self._operators,
            self._host,
            self._drives,
            micro_batches,
            self._number,
        )
        offload = self._offload(emitter)
        codes = [batch.code(emitter, offload) for batch in self.batches]
        writer = StageWriter(job, self._layout, codes, emitter, sharding, self._network, self._costs)
        HostUpdate(job, emitter, self._host, self._layout.on_host.tensors).begin()
        ends = self._write_passes(writer, emitter, offload, micro_batches)
        birth = writer.update(partial(self._update, emitter))
        held, rebuilt = self._operators.held(), sharding.rebuilt(self._layout.resident)
        return StageProgram(
            tasks=emitter.tasks,
            resident=[*self._layout.resident, *held],
            born=list(self._layout.born),
            birth=birth,
            set_up=set_up(job, self._layout, held, rebuilt),
            rebuilt=rebuilt,
            micro_batch_ends=tuple(ends[m] for m in sorted(ends)),
            first_rank=self._number * job.mesh.stage_ranks,
            layout=self._layout,
            unlike=unlike(job),
            loads=self.batches[0].loads,
        )

    def _write_passes(
        self, writer: StageWriter, emitter: Emitter, offload: ActivationOffload | None, micro_batches: int
    ) -> dict[int, int]:
        """Write all passes, pairs of them woven; return where each micro-batch ends."""
        job, ends = self._job, dict[int, int]()
        passes = schedules()[job.schedule](self._number, job.mesh.pp, micro_batches, job.pipeline.chunks)
        first: int | None = None
        for number, one in enumerate(passes):
            begins, pairs = len(emitter.tasks), one.paired and job.weaves
            # What the first of a pair waits for last is no matter of the second, whose tasks come before that.
            waits = () if first is None else emitter.wait_instead()
            if offload is not None:
                offload.stay(passes[number + 1].micro_batch if pairs else None)
            self._write(writer, one, beside=first is not None)
            for position in waits:
                emitter.await_(position)
            if first is not None:
                moved = emitter.reorder(first, woven(emitter.tasks, first, begins))
                if offload is not None:
                    offload.moved(moved)
            first = begins if pairs else None
            ends[one.micro_batch] = emitter.last
        return ends

    def _pace(self) -> npt.NDArray[np.float64] | None:
        """Of each behaviour; None where all nodes are sound."""
        cluster, ranks = self._job.cluster, self._number * self._job.mesh.stage_ranks
        return cluster.pace(ranks + self._job.folding.representative) if cluster.slow_nodes else None

    def _write(self, writer: StageWriter, one: Pass, *, beside: bool) -> None:
        """Write a pass, which may run *beside* the one before."""
        if one.direction == "forward":
            writer.forward(one.micro_batch, one.chunk)
        elif one.direction == "weights":
            writer.weights(one.micro_batch, one.chunk)
        else:
            put_off = "beside exchanges" if beside and self._job.fills else "never"
            later: Later = "in a pass" if one.direction == "inputs" else put_off  # type: ignore[assignment]
            writer.backward(one.micro_batch, one.chunk, later=later)

    def _update(self, emitter: Emitter) -> None:
        """Write the update, on the card and behind it on the host's cores."""
        job, layout, way = self._job, self._layout, self._job.offload.drives
        if layout.on_card.tensors or not layout.on_host.tensors:
            update = Update(emitter, self._update_costs, self._network, job.optimizer, layout.on_card)
            rules()[job.optimizer.name].write(update)
        if self._drives is not None and way is not None and layout.on_host.tensors:
            DriveUpdate(job, emitter, self._host, self._drives, way, layout.on_host.tensors).write()
        else:
            HostUpdate(job, emitter, self._host, layout.on_host.tensors).write()

    def _offload(self, emitter: Emitter) -> ActivationOffload | None:
        way, swap = self._job.offload.activations, self._job.swap_of(self._number)
        if swap.host:
            return ActivationSwap(emitter, self._host, swap)
        return None if way is None else ActivationOffload(emitter, self._host, way)

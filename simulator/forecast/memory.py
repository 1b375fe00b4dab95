"""Memory of a step: peaks against capacity, what they are made of, and curves over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.engine.ledger import TierLedger, account, of_behaviour
from simulator.engine.recording import Recording
from simulator.engine.task import Allocation
from simulator.forecast.holders import Holder, holders
from simulator.forecast.node_memory import NodeMemory, fullest_nodes, shared_capacities
from simulator.forecast.peaks import RankPeak, first_step, rank_peaks, settling_peak_bytes
from simulator.forecast.reserved import reserve
from simulator.forecast.timeline import MemoryCurve, TellingRank
from simulator.hardware.cluster import Cluster
from simulator.parallel.folding import Folding
from simulator.program.host_memory import OF_THE_HOST
from simulator.program.stage import StageProgram

CONTEXT_BYTES = 0.82e9
"""Device memory that no allocator hands out: CUDA context and loaded kernels (own runs, H200, torch 2.11)."""
COMMUNICATOR_BYTES = 0.87e9
"""Channel buffers of one NCCL communicator (own run of FSDP2 on two H200: 1.69e9 outside the allocator)."""
MOST_HOLDERS = 12
"""Groups of tensors that the summary tells of; smaller ones are in the breakdown by kind alone."""
ORDER = (
    "parameters",
    "gradients",
    "optimizer",
    "saved activations",
    "gathered parameters",
    "reduce buffers",
    "communication buffers",
    "logits",
    "workspace",
    "staging buffers",
    "context",
)


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Ledgers by tier, and capacities per accelerator."""

    ledgers: Mapping[str, TierLedger]
    capacity_bytes: Mapping[str, float]
    reserved_bytes: float
    """What the caching allocator of the hottest behaviour takes from the device."""
    outside_bytes: float
    """Device memory that is not the allocator's: the context."""
    stage: int
    """The pipeline stage it is about: the one with the highest peak."""
    peaks: tuple[RankPeak, ...]
    """Device memory of the ranks of all stages, highest first."""
    settling_peak_bytes: float
    """The highest of what happens once, on any stage: the model being made, DDP making its buckets anew."""
    made_of: Mapping[str, Sequence[Holder]] = field(default_factory=dict)
    """By tier, what was held at the highest peak of any rank."""
    nodes: Mapping[str, NodeMemory] = field(default_factory=dict)
    """By tier that the cards of a node share, the node that holds most there."""

    @property
    def hottest(self) -> int:
        """The behaviour with the highest device-memory peak."""
        return _hottest(self.ledgers)

    @property
    def first_step_peak_bytes(self) -> float:
        """The highest peak of the first step, which has no optimizer states until its update."""
        return max(peak.first_step_peak_bytes for peak in self.peaks)

    @property
    def verdict(self) -> str:
        """fits; tight, when the allocator would have to give segments back and try again; does not fit."""
        if _exceeds(self.ledgers, self.settling_peak_bytes, self.nodes, self.capacity_bytes):
            return "does not fit"
        return "tight" if self.reserved_bytes + self.outside_bytes > self.capacity_bytes["hbm"] else "fits"

    def summary(self) -> dict[str, Any]:
        """The `memory` block of the JSON contract: the rank with the highest peak of each tier."""
        block: dict[str, dict[str, Any]] = {}
        for tier, capacity in self.capacity_bytes.items():
            ledger = self.ledgers.get(tier)
            worst = int(np.argmax(ledger.peak_bytes)) if ledger else 0
            breakdown = ledger.breakdown(worst) if ledger else {}
            peak = float(ledger.peak_bytes[worst]) if ledger else 0.0
            made_of = [holder.row() for holder in self.made_of.get(tier, ())[:MOST_HOLDERS]]
            block[tier] = {
                "peak_bytes": peak, "capacity_bytes": capacity, "breakdown": breakdown, "made_of": made_of
            }  # fmt: skip
        for tier, node in self.nodes.items():
            block[tier]["node"] = node.row()
        hbm = block["hbm"]
        hbm["allocated_bytes"] = hbm["peak_bytes"] - self.outside_bytes
        hbm["reserved_bytes"] = self.reserved_bytes
        hbm["held_bytes"] = self.ledgers["hbm"].resident_bytes(self.hottest) - self.outside_bytes
        hbm["first_step_peak_bytes"] = self.first_step_peak_bytes
        hbm["settling_peak_bytes"] = self.settling_peak_bytes
        hbm["peaks"] = [peak.row() for peak in self.peaks]
        return block


def remember(programs: Sequence[StageProgram], cluster: Cluster, folding: Folding) -> MemoryForecast:
    """Account for the programs of all stages; the one with the highest peak decides.

    Raise :exc:`RuntimeError` when a program does not give back all that it took.
    """
    contexts = [_context(program) for program in programs]
    ledgers = [_ledgers(program, context, folding) for program, context in zip(programs, contexts, strict=True)]
    for ledger in (ledger for found in ledgers for ledger in found.values()):
        if np.abs(ledger.left_bytes).max() > 1.0:
            raise RuntimeError(f"{ledger.left_bytes.max():.0f} bytes of {ledger.tier} are never released")
    worst = max(range(len(programs)), key=lambda stage: float(ledgers[stage]["hbm"].peak_bytes.max()))
    peaks, settling = list[RankPeak](), 0.0
    for stage, (program, context, found) in enumerate(zip(programs, contexts, ledgers, strict=True)):
        later = found["hbm"]
        peaks += rank_peaks(program, folding, later, first_step(program, later), stage)
        settling = max(settling, settling_peak_bytes(program, context, folding.behaviours))
    program, context, found = programs[worst], contexts[worst], ledgers[worst]
    resident = [*program.resident, *program.born, context]
    return MemoryForecast(
        ledgers=found,
        capacity_bytes=_capacities(cluster),
        reserved_bytes=reserve(program, _hottest(found)).reserved_bytes,
        outside_bytes=of_behaviour(context.bytes, 0),
        stage=worst,
        peaks=tuple(sorted(peaks, key=lambda peak: -peak.peak_bytes)),
        settling_peak_bytes=settling,
        made_of={
            tier: holders(program.tasks, resident, ledger, int(np.argmax(ledger.peak_bytes)))
            for tier, ledger in found.items()
        },
        nodes=fullest_nodes(ledgers, cluster, folding),
    )


def fits(programs: Sequence[StageProgram], cluster: Cluster, folding: Folding) -> bool:
    """Whether all that is held at once has room: the verdict alone, for a fraction of what :func:`remember` costs."""
    return _held(programs, cluster, folding)[1]


def verdict_of(programs: Sequence[StageProgram], cluster: Cluster, folding: Folding) -> tuple[str, float]:
    """The verdict of :func:`remember` and bytes of device memory of the fullest rank, for a fraction of its cost."""
    ledgers, have_room = _held(programs, cluster, folding)
    peaks = [float(found["hbm"].peak_bytes.max()) for found in ledgers]
    worst = max(range(len(programs)), key=lambda stage: peaks[stage])
    if not have_room:
        return "does not fit", peaks[worst]
    reserved_bytes = reserve(programs[worst], _hottest(ledgers[worst])).reserved_bytes
    on_card = reserved_bytes + of_behaviour(_context(programs[worst]).bytes, 0)
    return "tight" if on_card > _capacities(cluster)["hbm"] else "fits", peaks[worst]


def _held(
    programs: Sequence[StageProgram], cluster: Cluster, folding: Folding
) -> tuple[list[dict[str, TierLedger]], bool]:
    """The accounts of every stage, and whether all that is held at once has room."""
    outside = [(program, _context(program)) for program in programs]
    ledgers = [_ledgers(program, context, folding) for program, context in outside]
    settling = max(settling_peak_bytes(program, context, folding.behaviours) for program, context in outside)
    nodes = fullest_nodes(ledgers, cluster, folding)
    return ledgers, not any(_exceeds(found, settling, nodes, _capacities(cluster)) for found in ledgers)


def room_bytes(programs: Sequence[StageProgram], cluster: Cluster, folding: Folding) -> tuple[list[float], float]:
    """What the replayed allocator leaves of the fullest card of each stage, and for each card what is left of the
    fullest node's memory; negative: missing.
    """
    contexts = [_context(program) for program in programs]
    ledgers = [_ledgers(program, context, folding) for program, context in zip(programs, contexts, strict=True)]
    capacity, node = _capacities(cluster), fullest_nodes(ledgers, cluster, folding).get("ddr")
    left = [
        capacity["hbm"] - reserve(program, _hottest(found)).reserved_bytes - of_behaviour(context.bytes, 0)
        for program, found, context in zip(programs, ledgers, contexts, strict=True)
    ]
    return left, capacity["ddr"] if node is None else -node.excess_bytes / node.cards


def _ledgers(program: StageProgram, context: Allocation, folding: Folding) -> dict[str, TierLedger]:
    """The accounts of a later step."""
    return account(program.tasks, [*program.resident, *program.born, context], folding.behaviours)


def _context(program: StageProgram) -> Allocation:
    """Device memory that no allocator hands out."""
    transfers = (task.collective for task in program.tasks if task.collective is not None)
    communicators = {one.communicator for one in transfers if one.communicator not in OF_THE_HOST}
    return Allocation("resident.context", "context", CONTEXT_BYTES + COMMUNICATOR_BYTES * len(communicators))


def _exceeds(
    ledgers: Mapping[str, TierLedger],
    settling_peak_bytes: float,
    nodes: Mapping[str, NodeMemory],
    capacity_bytes: Mapping[str, float],
) -> bool:
    """Whether device memory, or what the cards of a node share, is too small."""
    over = any(node.excess_bytes > 0 for node in nodes.values())
    return over or max(float(ledgers["hbm"].peak_bytes.max()), settling_peak_bytes) > capacity_bytes["hbm"]


def curve(recording: Recording, memory: MemoryForecast, tier: str, rank: TellingRank, column: int) -> MemoryCurve:
    """What *tier* of one behaviour held over time. A change takes effect when its task starts, in program order."""
    ledger = memory.ledgers[tier]
    at = [0 if position < 0 else int(recording.start_ns[position, column]) for position, _, _ in ledger.entries]
    present = {kind for _, kind, _ in ledger.entries}
    kinds = [kind for kind in ORDER if kind in present]
    row = {kind: number for number, kind in enumerate(kinds)}
    changes = np.zeros((len(kinds), len(ledger.entries)))
    for number, (_, kind, change) in enumerate(ledger.entries):
        changes[row[kind], number] = of_behaviour(change, column)
    held = np.cumsum(changes, axis=1)
    return MemoryCurve(
        rank=rank,
        tier=tier,
        capacity_bytes=memory.capacity_bytes[tier],
        time_ns=np.maximum.accumulate(np.array(at, np.int64)),
        bytes_by_kind=dict(zip(kinds, held, strict=True)),
    )


def _hottest(ledgers: Mapping[str, TierLedger]) -> int:
    return int(np.argmax(ledgers["hbm"].peak_bytes))


def _capacities(cluster: Cluster) -> dict[str, float]:
    used = min(cluster.accelerators, cluster.node.accelerators)
    shares = {tier: capacity / used for tier, capacity in shared_capacities(cluster).items()}
    return {"hbm": cluster.accelerator.hbm_capacity_bytes, **shares}

"""Simulation of a step with as few micro-batches as its steady state needs.

Once two micro-batches in a row take equally long, all further ones do: the step is extrapolated from there, so that
cost does not grow with gradient accumulation. The last one says nothing of that: no gathers of a next one run beside
its end. Unlike micro-batches come in turn, so whole turns of them are compared, and whole turns extrapolated. Where the
host's cores update beside the passes, all are simulated, since what the card waits for in the end depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from simulator.engine.interference import lost_ns
from simulator.engine.recording import Recording
from simulator.engine.simulation import Part, Simulation
from simulator.program.stage import StageProgram
from simulator.program.training_step import TrainingStep

FIRST_TRY = 4
"""Micro-batches simulated before steady state is looked for: a first, two alike, a last."""
ALIKE = 1e-5
"""Relative difference below which two micro-batches count as equally long."""
MORE_IN_A_PIPELINE = 2
"""Micro-batches by which a second run of a filled pipeline is longer at least: what they add every further ones add."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step, of which the first *simulated* micro-batches were run."""

    programs: tuple[StageProgram, ...]
    recordings: tuple[Recording, ...]
    simulated: int
    micro_batches: int
    events: int
    """Events that SimPy processed."""
    period_ns: int
    """Time of each micro-batch beyond the simulated ones, in the mean over a round."""
    round: int = 1
    """Micro-batches after which a step does the same again."""
    shorter: SimulatedStep | None = None
    """Of a pipeline that was extrapolated: the run with fewer micro-batches, which tells what further ones add."""

    @property
    def simulated_ns(self) -> int:
        """When the last task of what was simulated ended."""
        return max(recording.step_ns for recording in self.recordings)

    @property
    def step_ns(self) -> int:
        """The whole step."""
        return self.simulated_ns + self.more * self.period_ns

    @property
    def more(self) -> int:
        """Micro-batches that were extrapolated."""
        return self.micro_batches - self.simulated

    @property
    def typical(self) -> range:
        """The micro-batches that stand for those beyond the simulated ones: the last round that another one follows."""
        last = max(1, self.simulated - 1)
        return range(max(0, last - self.round), last)


def simulate(
    lowering: TrainingStep,
    micro_batches: int,
    *,
    behaviours: int,
    apart: bool = False,
    progress: Callable[[float], None] | None = None,
) -> SimulatedStep:
    """Run the step of *lowering* with *micro_batches*, or until it is steady.

    Everything is run twice where transfers slow compute beside them (`lost_ns`): the second time as slow as that.
    """
    say = progress or _silent

    def run(count: int, period_ns: int = 0) -> SimulatedStep:
        programs = lowering.programs(count)
        simulation = Simulation(*(Part(program.tasks, behaviours) for program in programs), apart=apart)
        alone = simulation.run(progress=lambda share: say(share / 2))
        longer = [lost_ns(program.tasks, found) for program, found in zip(programs, alone, strict=True)]
        recordings = alone
        if any(lost is not None for lost in longer):
            recordings = simulation.run(longer, progress=lambda share: say((1 + share) / 2))
        else:
            say(1.0)
        return SimulatedStep(programs, recordings, count, micro_batches, simulation.events, period_ns, lowering.round)

    turn = lowering.unlike
    if lowering.stages > 1:
        return _pipeline(run, lowering, micro_batches)
    least = micro_batches if lowering.job.offload.lags else FIRST_TRY + 2 * (turn - 1)
    count = _whole_turns(least, micro_batches, turn)
    while True:
        step = run(count)
        if count == micro_batches:
            return step
        periods = _periods(step.programs[0], step.recordings[0])[:-1]
        before, typical = sum(periods[-2 * turn : -turn]), sum(periods[-turn:])
        if abs(typical - before) <= ALIKE * typical:
            return replace(step, period_ns=typical // turn)
        count = _whole_turns(2 * count, micro_batches, turn)


def _silent(_share: float) -> None:
    """Progress that nobody listens to."""


def _pipeline(run: Callable[[int], SimulatedStep], lowering: TrainingStep, micro_batches: int) -> SimulatedStep:
    """A pipeline that is filled grows by equal amounts: two runs tell them. What is held at once is all simulated."""
    filled = max(FIRST_TRY, 2 * lowering.stages, lowering.held_at_once(micro_batches))
    if lowering.unlike > 1:
        return _unlike_pipeline(run, lowering.round, filled, micro_batches)
    more = max(MORE_IN_A_PIPELINE, lowering.round)
    if micro_batches <= filled + more:
        return run(micro_batches)
    shorter, longer = run(filled), run(filled + more)
    return replace(longer, period_ns=(longer.simulated_ns - shorter.simulated_ns) // more, shorter=shorter)


def _unlike_pipeline(run: Callable[[int], SimulatedStep], turn: int, filled: int, micro_batches: int) -> SimulatedStep:
    """A turn later it may still be filling, since its slowest micro-batches come late: two turns in a row tell."""
    longer, more_ns = run(_whole_turns(filled + turn, micro_batches, turn)), -1
    while longer.simulated < micro_batches:
        before, shorter = more_ns, longer
        longer = run(shorter.simulated + turn)
        more_ns = longer.simulated_ns - shorter.simulated_ns
        if abs(more_ns - before) <= ALIKE * more_ns:
            return replace(longer, period_ns=more_ns // turn, shorter=shorter)
    return longer


def _whole_turns(least: int, micro_batches: int, turn: int) -> int:
    """So many micro-batches, *least* or a few more, that the others of *micro_batches* are whole turns; at most all."""
    return min(micro_batches, least + (micro_batches - least) % turn)


def _periods(program: StageProgram, recording: Recording) -> list[int]:
    """Time from the end of each micro-batch's last compute task to the next one's."""
    ends = [int(recording.end_ns[_last_compute(program, end)].max()) for end in program.micro_batch_ends]
    return [later - earlier for earlier, later in pairwise(ends)]


def _last_compute(program: StageProgram, position: int) -> int:
    while program.tasks[position].stream != "compute":
        position -= 1
    return position

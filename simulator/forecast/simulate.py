"""Simulation of a step with as few micro-batches as its steady state needs.

Once two micro-batches in a row take equally long, all further ones do: the step is extrapolated from there, so that
cost does not grow with gradient accumulation. The last one says nothing of that: no gathers of a next one run beside
its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from simulator.engine.simulation import Part, Recording, Simulation
from simulator.program.training_step import Program, TrainingStep

FIRST_TRY = 4
"""Micro-batches simulated before steady state is looked for: a first, two alike, a last."""
ALIKE = 1e-5
"""Relative difference below which two micro-batches count as equally long."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step, of which the first *simulated* micro-batches were run."""

    program: Program
    recording: Recording
    simulated: int
    micro_batches: int
    events: int
    """Events that SimPy processed."""
    period_ns: int
    """Time of each micro-batch beyond the simulated ones."""

    @property
    def step_ns(self) -> int:
        """The whole step."""
        return self.recording.step_ns + self.more * self.period_ns

    @property
    def more(self) -> int:
        """Micro-batches that were extrapolated."""
        return self.micro_batches - self.simulated

    @property
    def typical(self) -> int:
        """The micro-batch that stands for those beyond the simulated ones: the last that another one follows."""
        return max(0, self.simulated - 2)


def simulate(
    lowering: TrainingStep,
    micro_batches: int,
    *,
    behaviours: int,
    apart: bool = False,
    progress: Callable[[float], None] | None = None,
) -> SimulatedStep:
    """Run the step of *lowering* with *micro_batches*, or until it is steady."""
    count = min(micro_batches, FIRST_TRY)
    while True:
        program = lowering.program(count)
        simulation = Simulation(Part(program.tasks, behaviours), apart=apart, progress=progress)
        (recording,) = simulation.run()
        periods = _periods(program, recording)
        if count == micro_batches:
            return SimulatedStep(program, recording, count, micro_batches, simulation.events, 0)
        before, typical = periods[-3:-1]
        if abs(typical - before) <= ALIKE * typical:
            return SimulatedStep(program, recording, count, micro_batches, simulation.events, typical)
        count = min(micro_batches, 2 * count)


def _periods(program: Program, recording: Recording) -> list[int]:
    """Time from the end of each micro-batch's last compute task to the next one's."""
    ends = [int(recording.end_ns[_last_compute(program, end)].max()) for end in program.micro_batch_ends]
    return [later - earlier for earlier, later in pairwise(ends)]


def _last_compute(program: Program, position: int) -> int:
    while program.tasks[position].stream != "compute":
        position -= 1
    return position

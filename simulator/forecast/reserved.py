"""Reserved memory: what the caching allocator has taken from the device once steps look alike.

Setting up and two steps are replayed, since what they leave is where the next has to fit: how the parameters came to
the device, then a step without optimizer states, at whose end the optimizer allocates them amid whatever is free, then
a step with them, for which DDP makes its buckets anew. One turn of unlike micro-batches more than are in flight at once
stands for all: later ones allocate what it did.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.allocator import Replay
from simulator.program.rebuilt import second_step
from simulator.program.stage import StageProgram

_STEPS = 2


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the allocator of one behaviour has taken."""

    reserved_bytes: float
    allocated_bytes: float
    """What was in use of it when the last segment was taken."""

    @property
    def fragmentation(self) -> float:
        """The share of reserved memory that was free at that moment, yet of no use."""
        return 1 - self.allocated_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


def reserve(program: StageProgram, behaviour: int) -> Reservation:
    """Replay steps of *program* as *behaviour* makes them."""
    replay = Replay(behaviour)
    replayed = _in_flight(program) + program.unlike
    passes = [task for task in program.tasks if 0 <= task.micro_batch < replayed]
    update = 1 + max(number for number, task in enumerate(program.tasks) if task.micro_batch >= 0)
    replay.run(program.set_up)
    for step in range(_STEPS):
        replay.run(second_step(passes, program.rebuilt) if step and program.rebuilt else passes)
        replay.run(program.tasks[update : program.birth])
        if step == 0:
            replay.take(program.born)
        replay.run(program.tasks[program.birth :])
    allocator = replay.allocator
    return Reservation(float(allocator.reserved_bytes), float(allocator.allocated_when_grown_bytes))


def _in_flight(program: StageProgram) -> int:
    """Micro-batches begun by the end of the first one."""
    end = program.micro_batch_ends[0]
    return 1 + max(task.micro_batch for task in program.tasks[: end + 1])

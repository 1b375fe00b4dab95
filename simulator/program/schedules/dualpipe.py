"""DualPipe (DeepSeek-V3, section 3.2.1): micro-batches from both ends of the pipeline, forward beside backward passes.

Two whole models lie on the stages in opposite directions. In the middle of a step every forward pass of one direction
runs together with a backward pass of the other, which hides the exchanges of both; at the ends gradients of weights
fill the bubble, which is (p / 2 - 1) (F&B + B - 3 W) of p stages, where F&B is the time of two passes together and B
has its W. The order is that of deepseek-ai/DualPipe (`DualPipe.step`), whose eight parts are told by their contents.
"""

from __future__ import annotations

from collections import Counter, deque

from simulator.program.schedules import Pass

NAME = "dualpipe"


def order(stage: int, stages: int, micro_batches: int, _chunks: int = 2) -> list[Pass]:
    """Passes of *stage*. Even micro-batches begin on stage 0, in chunk 0 of every stage, odd ones on the last stage."""
    ends = min(stage, stages - 1 - stage)
    inner, around = stages // 2 - ends - 1, ends + 1
    plan = _Plan(first=int(stage >= stages // 2))
    plan.run(2 * inner, "F0")
    plan.run(around, "F0", "F1")
    plan.run(inner, "I1", "W", "F1")
    middle = micro_batches // 2 - stages + around
    plan.run(min(1, middle), "F0" if not inner else "F0+", "B1", "F1+", "B0")
    plan.run(middle - 1, "F0+", "B1", "F1+", "B0")
    plan.run(inner, "B1", "F1+", "B0")
    late = around // 2
    plan.run(late, "B1", "B0")
    if around > late:
        # The second half leaves its weights for later: from the middle turn on, or from its second pass.
        plan.run(1, "I1" if ends % 2 else "B1", "I0")
        plan.run(around - late - 1, "I1", "I0")
    plan.run(inner, "W", "I0")
    plan.run(len(plan.waiting), "W")
    return plan.passes


class _Plan:
    """Passes so far. Chunk 0 of what is written is the *first* to have work: that from the nearer end."""

    def __init__(self, first: int) -> None:
        self.passes: list[Pass] = []
        self.waiting: deque[tuple[int, int]] = deque()
        """Micro-batches and chunks whose gradients of weights are to be made."""
        self._first = first
        self._done: Counter[tuple[str, int]] = Counter()

    def run(self, times: int, *written: str) -> None:
        """Add passes *written* as F0 or F1 (with + where it runs beside the next one), B, I of inputs, W, so often."""
        for _ in range(times):
            for one in written:
                self._add(one)

    def _add(self, written: str) -> None:
        if written == "W":
            self.passes.append(Pass("weights", *self.waiting.popleft()))
            return
        chunk = int(written[1]) ^ self._first
        way = "F" if written[0] == "F" else "B"
        micro_batch = 2 * self._done[way, chunk] + chunk
        self._done[way, chunk] += 1
        if written[0] == "I":
            self.waiting.append((micro_batch, chunk))
        directions = {"F": "forward", "B": "backward", "I": "inputs"}
        self.passes.append(Pass(directions[written[0]], micro_batch, chunk, written.endswith("+")))  # type: ignore[arg-type]

"""Host time of training steps, measured: how long Python is busy in each phase, and the operators of one step.

    python measure_host_of_steps.py cases.json results.jsonl            # cases of one GPU
    torchrun --nproc-per-node 2 measure_host_of_steps.py ...            # cases that say "gpus": 2

Cases are those of `measure_step.py`, of few tokens, so that the device is not what the host waits for. A phase ends
when Python returns; nothing waits for the device but what the model's code itself does. A line of JSON a case: seconds
of forward pass, backward pass, update, freeing of gradients and of the wait for the device behind them, medians of
steps that begin with an idle device; launches; of one step under torch's profiler each operator's own and whole
milliseconds on the host and its calls.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure_step
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

WARM_UP, STEPS, OPERATORS = 6, 15, 70
PHASES = ("forward", "backward", "optimizer", "zero", "sync", "total")
LAUNCHES = {"cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"}


class HostSteps:
    """Steps of one case."""

    def __init__(self, case: dict[str, Any], world: int) -> None:
        torch.manual_seed(0)
        self._world = world
        self._model = measure_step.build(case, world)
        self._optimizer = measure_step.Optimizers(self._model, "fused")
        shape = case["micro_batch"], case["sequence"]
        self._tokens = torch.randint(0, case["model"]["vocab_size"], shape, device="cuda")

    def step(self) -> list[float]:
        """One; the clock at its begin and behind each phase."""
        clock = [time.perf_counter()]
        loss = self._model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss
        clock.append(time.perf_counter())
        for phase in (loss.backward, self._optimizer.step, self._optimizer.zero_grad, torch.cuda.synchronize):
            phase()
            clock.append(time.perf_counter())
        return clock

    def phases(self) -> list[float]:
        """Seconds of each phase and of all, of a step that begins on all ranks with nothing to do."""
        torch.cuda.synchronize()
        if self._world > 1:
            dist.barrier()
            torch.cuda.synchronize()
        clock = self.step()
        return [*(after - before for before, after in pairwise(clock)), clock[-1] - clock[0]]


def measure(case: dict[str, Any], world: int, _history: Path | None) -> dict[str, Any]:
    """The host's seconds and operators in steps of one case."""
    steps = HostSteps(case, world)
    for _ in range(WARM_UP):
        steps.step()
    columns = zip(*(steps.phases() for _ in range(STEPS)), strict=True)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        steps.step()
    found = profiled.key_averages()
    table = [[one.key, one.self_cpu_time_total / 1e3, one.cpu_time_total / 1e3, one.count] for one in found]
    return {
        "gpus": world,
        "phases_s": dict(zip(PHASES, map(statistics.median, columns), strict=True)),
        "launches": sum(one.count for one in found if one.key in LAUNCHES),
        "operators": sorted(table, key=lambda row: -row[1])[:OPERATORS],
    }


if __name__ == "__main__":
    measure_step.main(measure)

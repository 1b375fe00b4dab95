"""The update on the host's cores: AdamW over fp32 states in host memory, by one process a card.

Cores pass over host memory, so that a pass takes what its bytes take: of the few cores of a process, or of the memory
that all processes of the node share. In bytes an element of fp32 parameters, gradients and moments, a fused AdamW
reads four and writes three (28); one step by step reads and writes 88: a first moment's lerp 12, the second's two steps
20, the root, its quotient and its sum 32 with what a new tensor's first write reads, decay 8 and update 16.

Five systems, as they run:

- Megatron-LM's `HybridDeviceOptimizer` under ZeRO-1, without overlap: gradients out in fp32, a fused AdamW of PyTorch,
  and the new master weights back into those on the card, where they stay as well.
- DeepSpeed's ZeRO-2 with `offload_optimizer` (ZeRO-Offload): gradients, out since the backward pass, are scaled (8) and
  updated by `DeepSpeedCPUAdam` (28); the fp32 weights go to the card, which casts them.
- The same with ZenFlow's overlap (`zenflow`): another process updates by the gradients of the last step while this
  step's passes run, and clones the new weights (16). At the end of the step they go to the card, in fp32 out of memory
  that is not pinned, and its own gradients are scaled.
- FSDP2's `CPUOffloadPolicy`: parameters and gradients are there already.
- DeepSpeed's ZeRO-3 with `offload_optimizer`: gradients, out since the backward pass, are scaled (8), updated by
  `DeepSpeedCPUAdam` (28), cast (8) and copied to the card's bf16 shards out of memory that is not pinned.

The host waits for its own cores, and for the gradients before them.
"""

from __future__ import annotations

from simulator.program.costs import Priced
from simulator.program.emitter import Emitter, allocation
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.host_memory import COPY_IN, COPY_OUT, CORES, HostMemory
from simulator.program.job import Job
from simulator.program.update import Owned
from simulator.program.zero2 import WIDE_PARAMETERS

FP32_BYTES = 4
SCALE_BYTES = 2 * FP32_BYTES
CAST_BYTES = FP32_BYTES + 2 * COMPUTE_BYTES
"""Read in fp32, written in bf16 to lines that are read first."""
PINNED_BYTES = 3 * FP32_BYTES
"""Weights read and written, gradients read: moments are where the cores are that made them."""
STALE_BYTES = 4 * FP32_BYTES
"""A clone of the new weights, copied for the process that trains, ..."""
STALE_NEAR = 2 * FP32_BYTES
"""... of which what is read and the copy are in shared memory."""


class HostUpdate:
    """Writes the update of *tensors* that a rank's process has in host memory."""

    def __init__(self, job: Job, emitter: Emitter, host: HostMemory, tensors: tuple[Owned, ...]) -> None:
        self._job = job
        self._emitter = emitter
        self._host = host
        self._elements = sum(tensor.elements for tensor in tensors)
        self._tensors = len(tensors)

    def begin(self) -> None:
        """Before the first pass: begin the update by the last step's gradients, if it runs beside this step's."""
        if not self._tensors or not self._job.offload.lags:
            return
        size, threads = self._elements * (self._job.optimizer.sweep_bytes + STALE_BYTES), self._job.offload.threads
        transfer = self._host.sweep("cpu_optimizer", size, threads, near=self._elements * (PINNED_BYTES + STALE_NEAR))
        with self._emitter.at(phase="optimizer"):
            self._emitter.transfer("cpu AdamW", CORES, "cpu_optimizer", transfer, deps=(), launches=0)

    def write(self) -> None:
        """Write the tasks, if there is anything to update."""
        if not self._tensors:
            return
        job = self._job
        if job.zero == 1:
            self._gradients_out()
            self.sweep("cpu AdamW", "cpu_optimizer", job.optimizer.sweep_bytes, near=PINNED_BYTES)
            self.parameters_in(FP32_BYTES, copies=self._tensors)
        elif job.offload.lags:
            self._lagging()
        elif job.zero == 2:
            self.sweep("scale gradients on cpu", "cpu_pass", SCALE_BYTES, near=SCALE_BYTES)
            self.sweep("cpu AdamW", "cpu_optimizer", job.optimizer.sweep_bytes, near=PINNED_BYTES)
            self.parameters_in(FP32_BYTES, copies=1)
            self._emitter.take(allocation(WIDE_PARAMETERS, "workspace", self._elements * FP32_BYTES))
        elif job.offload.parameters:
            self.sweep("cpu AdamW", "cpu_optimizer", _adamw_bytes(job), near=PINNED_BYTES)
        else:
            self.sweep("scale gradients on cpu", "cpu_pass", SCALE_BYTES, near=SCALE_BYTES)
            self.sweep("cpu AdamW", "cpu_optimizer", job.optimizer.sweep_bytes, near=FP32_BYTES)
            self.sweep("cast parameters on cpu", "cpu_pass", CAST_BYTES)
            self.parameters_in(COMPUTE_BYTES, copies=1, pinned=False)
        self._emitter.compute("synchronize", "synchronize", Priced(0, 0, "measured"))

    def _gradients_out(self) -> None:
        size, copies = self._elements * FP32_BYTES, self._tensors
        transfer, deps = self._host.out(size, copies=copies), (self._emitter.last,)
        self._emitter.transfer("gradients out", COPY_OUT, COPY_OUT, transfer, deps=deps, launches=copies)
        self._emitter.block_host()

    def _lagging(self) -> None:
        """Take the weights that were updated beside this step's passes, then have its own gradients scaled."""
        nothing = self._host.transfer("cpu_wait", CORES, 0.0, 0.0, {}, "measured")
        position = self._emitter.transfer("wait for cores", CORES, "cpu_wait", nothing, deps=(), launches=0)
        self._emitter.block_host()
        self._emitter.await_(position)
        self.parameters_in(FP32_BYTES, copies=1, pinned=False)
        self._emitter.take(allocation(WIDE_PARAMETERS, "workspace", self._elements * FP32_BYTES))
        self.sweep("scale gradients on cpu", "cpu_pass", SCALE_BYTES, near=SCALE_BYTES)

    def sweep(self, name: str, kind: str, element_bytes: float, *, near: float = 0.0) -> None:
        """A pass of the cores over what is updated, of which *near* bytes an element lie in one NUMA domain; the host
        waits for it.
        """
        size, threads = self._elements * element_bytes, self._job.offload.threads
        transfer = self._host.sweep(kind, size, threads, near=self._elements * near)
        position = self._emitter.transfer(name, CORES, kind, transfer, deps=(), launches=0)
        self._emitter.block_host()
        self._emitter.await_(position)

    def parameters_in(self, element_bytes: int, *, copies: int, pinned: bool = True) -> None:
        """Copy what was updated to the card; the next task there waits for it."""
        transfer, deps = self._host.into(self._elements * element_bytes, copies=copies, pinned=pinned), ()
        position = self._emitter.transfer("parameters in", COPY_IN, COPY_IN, transfer, deps=deps, launches=copies)
        if not pinned:
            self._emitter.block_host()
        self._emitter.await_(position)


def _adamw_bytes(job: Job) -> float:
    """Bytes an element that PyTorch's AdamW passes over, in one kernel or step by step."""
    optimizer = job.optimizer
    if not optimizer.foreach:
        return optimizer.sweep_bytes
    return 6.0 * optimizer.stored_bytes + 16.0 * optimizer.moment_bytes

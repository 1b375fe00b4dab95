"""Host time of PyTorch's own code between kernels: tables of `_chunk_cat`, compiled regions, DTensor, collectives.

Figures are in launches of an eager framework (`framework_launch` of the accelerator's sheet), so that they go with the
host as that does. They were measured on two H200 with torch 2.11 and transformers 5.17
(hardware_profiles/measured/h200-sxm/host-steps-2026-11-30.json, by tests/validation/measure_host_of_steps.py): seconds
until Python returns, beside those of one GPU, where a launch took 31 us; tests/test_program_framework_host.py works
them out. Steps of the same cases took up to a third longer at other moments.

Wrong where Python is not what calls: Megatron-LM's stack, whose launches carry theirs, gets none of it. Waits of the
host for the device that a model's own code asks for are not here either.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.operator import Execution

CAT_ENTRY = 1.0e-4
"""An entry of the table that `_chunk_cat` fills on the host, in its C++."""
CAT_ENTRY_BYTES = 2048
"""What an entry stands for of a rank's part of a reduction: a block of 128 threads of 16 bytes (PyTorch's
`aten/src/ATen/native/cuda/TensorShape.cu`)."""
REGION = 27
"""Into a compiled layer and out of it, in one pass: guards, wrappers of AOT autograd, the compiled module's Python."""
OPERATOR = 17
"""A DTensor parameter's use in one pass where layers are not compiled: operators on DTensors, and what spreads their
inputs and results."""
COLLECTIVE = 12
"""A functional collective, with its wait and the wrappers of tensors that are on their way."""


@dataclass(frozen=True, slots=True)
class FrameworkHost:
    """Nanoseconds that the host is busy with a framework's Python: of each call of what the names say."""

    cat_entry_ns: float = 0.0
    region_ns: int = 0
    operator_ns: int = 0
    collective_ns: int = 0

    def cat_of(self, part_bytes: float) -> int:
        """Of the copy before a reduction that leaves *part_bytes* to each rank, in the format of the reduction."""
        return round(self.cat_entry_ns * part_bytes / CAT_ENTRY_BYTES)


def framework_host(launch_s: float, execution: Execution, *, fsdp2: bool, ddp: bool, tp: int) -> FrameworkHost:
    """What PyTorch's own parallelism asks of a host whose eager launch takes *launch_s*.

    Data parallelism is *fsdp2*, *ddp*, or Megatron-LM's or DeepSpeed's, of whose Python nothing is known; *tp* ranks
    share a layer.
    """
    launch_ns = launch_s * 1e9
    functional = execution != "fused" and (fsdp2 or ddp)
    spread = functional and execution == "eager" and tp > 1
    return FrameworkHost(
        cat_entry_ns=CAT_ENTRY * launch_ns if fsdp2 else 0.0,
        region_ns=round(REGION * launch_ns) if execution == "compiled" else 0,
        operator_ns=round(OPERATOR * launch_ns) if spread else 0,
        collective_ns=round(COLLECTIVE * launch_ns) if functional else 0,
    )

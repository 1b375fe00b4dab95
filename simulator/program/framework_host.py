"""Host time of a framework's own Python between kernels: PyTorch's FSDP2, compiled regions, DTensor, collectives.

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

GATHER = 47
"""FSDP2's hooks, all-gather, and copies into and out of it, of one unit in one pass, beside their kernels' launches."""
REDUCTION = 29
"""FSDP2's hook behind a backward pass and its reduce-scatter, likewise, for each mesh of a unit."""
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

    gather_ns: int = 0
    reduction_ns: int = 0
    cat_entry_ns: float = 0.0
    region_ns: int = 0
    operator_ns: int = 0
    collective_ns: int = 0

    def reduction_of(self, part_bytes: float) -> int:
        """Of a reduction that leaves *part_bytes* to each rank, in the format that it is reduced in."""
        return self.reduction_ns + round(self.cat_entry_ns * part_bytes / CAT_ENTRY_BYTES)


def framework_host(launch_s: float, execution: Execution, *, zero: int, megatron: bool, tp: int) -> FrameworkHost:
    """What PyTorch's own parallelism asks of a host whose eager launch takes *launch_s*.

    *zero*: what data-parallel ranks share, 3 for FSDP2, 0 for nothing. Nothing of Megatron-LM's stack, be it its own
    (*megatron*) FSDP, and of DeepSpeed's is known.
    """
    launch_ns = launch_s * 1e9
    sharded = zero == 3 and not megatron
    functional = execution != "fused" and (sharded or zero == 0)
    spread = functional and execution == "eager" and tp > 1
    return FrameworkHost(
        gather_ns=round(GATHER * launch_ns) if sharded else 0,
        reduction_ns=round(REDUCTION * launch_ns) if sharded else 0,
        cat_entry_ns=CAT_ENTRY * launch_ns if sharded else 0.0,
        region_ns=round(REGION * launch_ns) if execution == "compiled" else 0,
        operator_ns=round(OPERATOR * launch_ns) if spread else 0,
        collective_ns=round(COLLECTIVE * launch_ns) if functional else 0,
    )

"""Accelerators: what one device can compute, hold and move.

Peaks are dense (no structured sparsity) and per device as the cluster counts them: a dual-die package is one
accelerator. They say what the silicon could do; the share that kernels attain lies in curves, see :mod:`.curve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from simulator.hardware.curve import Curve, number_format
from simulator.hardware.figure import Figure, Record
from simulator.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds


class AcceleratorSheet(Record):
    """What a file of hardware_profiles/accelerators says."""

    name: str
    vendor: str
    dense_flops_per_s: Annotated[dict[str, Figure[FlopsPerSecond]], Field(min_length=1)]
    """Peak by number format: bf16, fp16, fp8, mxfp8 (a power of two as scale for each 32 values, applied by the
    hardware), fp4, tf32, fp32, fp64, int8."""
    hbm_capacity: Figure[Bytes]
    """What programs can allocate: the device-visible size where it is known, otherwise the sheet's."""
    hbm_bandwidth: Figure[BytesPerSecond]
    kernel_launch: Figure[Seconds]
    """Host time of launching one kernel."""
    framework_launch: Figure[Seconds]
    """Host time per kernel launched from a framework's Python: modules, dispatch and autograd included."""
    fused_launch: Figure[Seconds]
    """The same in a hand-fused stack: fewer kernels, each behind an autograd function of its own in Python."""
    kernel_gap: Figure[Seconds]
    """Device time between two kernels of a stream that are queued one behind the other."""
    graph_gap: Figure[Seconds] | None = None
    """The same between kernels of a CUDA graph."""
    sm_count: Figure[float] | None = None
    """Independent compute units: SM, CU or AI core."""
    l2: Figure[Bytes] | None = None
    tdp_w: Figure[float] | None = None
    matmul_workspace: Figure[Bytes] | None = None
    """Memory that the matmul library takes from the framework's allocator for each of its handles, for good."""
    curves: tuple[str, ...] = ()
    """Parts whose measured curves stand in, nearest first, for the kinds of kernel not measured on this one."""
    notes: str = ""


class UnsupportedDtypeError(ValueError):
    """Arithmetic in a number format that the accelerator has no peak for."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A sheet with the curves that price its kernels."""

    id: str
    sheet: AcceleratorSheet
    curves: Mapping[str, tuple[Curve, ...]]
    """By kind of kernel, own first; a curve whose `part` is another id is carried over from that part."""

    @property
    def hbm_capacity_bytes(self) -> float:
        """Device memory that programs can allocate."""
        return self.sheet.hbm_capacity.value

    @property
    def hbm_bandwidth_bytes_per_s(self) -> float:
        """Peak rate of device memory."""
        return self.sheet.hbm_bandwidth.value

    @property
    def matmul_workspace_bytes(self) -> float:
        """Memory that a handle of the matmul library holds; 0 where it is not known."""
        return self.sheet.matmul_workspace.value if self.sheet.matmul_workspace else 0.0

    def launch_s(self, execution: Literal["eager", "compiled", "fused"]) -> float:
        """Host time per kernel: launched by a framework, by compiled code or by a hand-fused stack."""
        sheet = self.sheet
        return {"eager": sheet.framework_launch, "compiled": sheet.kernel_launch, "fused": sheet.fused_launch}[
            execution
        ].value

    @property
    def kernel_gap_s(self) -> float:
        """Device time between two kernels."""
        return self.sheet.kernel_gap.value

    @property
    def graph_gap_s(self) -> float:
        """Device time between two kernels of a CUDA graph; between any two where it is not known."""
        return self.sheet.graph_gap.value if self.sheet.graph_gap else self.kernel_gap_s

    def has_format(self, dtype: str) -> bool:
        """Whether the part does arithmetic in *dtype*, as far as is on record."""
        return dtype in self.sheet.dense_flops_per_s

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak in the format of *dtype*, however scaled.

        Raise :exc:`UnsupportedDtypeError`, with the formats there are, if there is none.
        """
        figure = self.sheet.dense_flops_per_s.get(number_format(dtype))
        if figure is None:
            known = ", ".join(sorted(self.sheet.dense_flops_per_s))
            raise UnsupportedDtypeError(f"{self.id} has no {dtype} arithmetic on record; it has {known}")
        return figure.value

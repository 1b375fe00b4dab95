"""The least time of a kernel: its work at the best rates that its curve tells, without what small or uneven work adds.

Proportional to the work, so that no way to cut a kernel into smaller ones takes less in all.
"""

from __future__ import annotations

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.curve import Curve, Series, choose, pick
from simulator.hardware.kernel_time import head_dim


def least_time_s(
    accelerator: Accelerator,
    kind: str,
    flops: float,
    bytes: float,  # noqa: A002 - the operators' own word
    shape: tuple[int, ...] = (),
    dtype: str = "bf16",
    *,
    backward: bool = False,
    weight_gradient: bool = False,
) -> float:
    """Seconds of so many *flops* and *bytes* in kernels of *kind*, in any number of launches; never above
    :func:`simulator.hardware.kernel_time.kernel_time`, whose words these are.
    """
    curve = choose(accelerator.curves[kind], dtype, backward=backward)

    def best(series: tuple[Series, ...]) -> float:
        """Of those that would be picked, however the elements are cut into parts."""
        either = (
            pick(
                series,
                dtype,
                backward=backward,
                head_dim=head_dim(kind, shape),
                weight_gradient=weight_gradient,
                even_parts=even,
            )
            for even in (True, False)
        )
        return max(share for one in either for _, share in one.points)

    memory_s = bytes / (accelerator.hbm_bandwidth_bytes_per_s * best(curve.memory) * curve.clocked)
    if not curve.compute or not flops:
        return memory_s
    rate = accelerator.peak_flops_per_s(dtype) * best(curve.compute)
    return max(memory_s, flops / rate / _sustained(curve))


def _sustained(curve: Curve) -> float:
    """Share of the rate that arithmetic keeps within a step, whichever of its series tells the rate."""
    at_limit = any(series.at_limit for series in curve.compute)
    return 1.0 if curve.sustained is None or at_limit else curve.sustained.value

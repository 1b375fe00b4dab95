"""What operators cost on one accelerator: kernels priced one by one, adapters and frozen weights accounted for.

A frozen weight has no gradient of its own and keeps no input; an adapter adds two thin gemms forward, their four
gradients backward, and keeps the input and the low-rank product (LoRA: Hu et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.curve import number_format
from simulator.hardware.kernel_time import kernel_time
from simulator.model.operator import Execution, Kernel, Operator
from simulator.parallel.sharding import Adapter

Rows = npt.NDArray[np.int64]
"""Rows of each expert on each behaviour: [behaviours, experts on the rank]."""
Direction = Literal["forward", "backward", "weight gradient"]
Amount = float | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Priced:
    """Time of one direction of an operator."""

    duration_ns: int | npt.NDArray[np.int64]
    launches: int
    grade: str
    looped: int = 0
    """Launches that a library makes one after the other in one call, beside *launches*."""

    def __add__(self, other: Priced) -> Priced:
        """One after the other; the longer one tells the grade."""
        longer = self if np.max(self.duration_ns) >= np.max(other.duration_ns) else other
        launches, looped = self.launches + other.launches, self.looped + other.looped
        return Priced(self.duration_ns + other.duration_ns, launches, longer.grade, looped)


class Costs:
    """Prices operators; remembers what it has priced, since most layers are alike."""

    def __init__(
        self, accelerator: Accelerator, execution: Execution, *, per_expert: bool = False, captured: bool = False
    ) -> None:
        """*per_expert*: a grouped product is a library's loop over the experts of the rank.

        Their kernels share the device on several streams, so that the group's time is priced; the host launches each.
        *captured*: kernels are those of a CUDA graph.
        """
        self._accelerator = accelerator
        self._execution: Execution = execution
        self._per_expert = per_expert
        self._kernel_gap_s = accelerator.graph_gap_s if captured else accelerator.kernel_gap_s
        self._known: dict[tuple[Kernel, Direction], tuple[float, str]] = {}

    def forward(self, operator: Operator, adapters: tuple[Adapter, ...], tokens: int, rows: Rows | None) -> Priced:
        """Time of the forward kernels, adapters included."""
        kernels = operator.forward + sum((_adapter_forward(a, tokens) for a in adapters), ())
        return self._price(kernels, operator, rows, "forward")

    def backward(
        self, operator: Operator, adapters: tuple[Adapter, ...], tokens: int, rows: Rows | None, *, trained: bool
    ) -> Priced:
        """Time of the backward kernels; those of the weights' gradient only when they are *trained*."""
        inputs, weights = self.backward_parts(operator, adapters, tokens, rows, trained=trained)
        return inputs if weights is None else inputs + weights

    def backward_parts(
        self, operator: Operator, adapters: tuple[Adapter, ...], tokens: int, rows: Rows | None, *, trained: bool
    ) -> tuple[Priced, Priced | None]:
        """The same in two: gradients of inputs, with the adapters', and of weights, None where there are none."""
        kernels = operator.backward + sum((_adapter_backward(a, tokens) for a in adapters), ())
        inputs = self._price(kernels, operator, rows, "backward")
        if not trained or not operator.backward_weight:
            return inputs, None
        return inputs, self._price(operator.backward_weight, operator, rows, "weight gradient")

    def price(self, kernel: Kernel) -> Priced:
        """Time of a kernel that belongs to no operator."""
        return self.kernel(kernel, back=False)

    def kernel(self, kernel: Kernel, *, back: bool) -> Priced:
        """Time of one of an operator's kernels, forward or *back*, that carries no adapter and knows no routed rows."""
        seconds, grade = self._plain(kernel, "backward" if back else "forward")
        return Priced(ceil(seconds * 1e9), kernel.launches, grade)

    @property
    def launch_ns(self) -> int:
        """Host time of one launch."""
        return round(self._accelerator.launch_s(self._execution) * 1e9)

    @property
    def framework_launch_ns(self) -> int:
        """The same where a framework's Python makes it, however the model runs."""
        return round(self._accelerator.launch_s("eager") * 1e9)

    @property
    def looped_launch_ns(self) -> int:
        """Host time of one launch of those that a library makes in a loop."""
        return round(self._accelerator.sheet.kernel_launch.value * 1e9)

    def _price(
        self, kernels: tuple[Kernel, ...], operator: Operator, rows: Rows | None, direction: Direction
    ) -> Priced:
        total: Amount = 0.0
        weakest: dict[str, float] = {}
        for kernel in kernels:
            if operator.rows == "routed" and rows is not None:
                seconds, grade = self._routed(kernel, rows, direction)
            else:
                seconds, grade = self._plain(kernel, direction)
            total = total + seconds
            weakest[grade] = weakest.get(grade, 0.0) + float(np.max(seconds))
        nanoseconds = np.ceil(np.asarray(total) * 1e9).astype(np.int64)
        grade = max(weakest, key=lambda g: weakest[g]) if weakest else "measured"
        duration = int(nanoseconds) if nanoseconds.ndim == 0 else nanoseconds
        return Priced(duration, sum(kernel.launches for kernel in kernels), grade, self._looped(kernels, rows))

    def _looped(self, kernels: tuple[Kernel, ...], rows: Rows | None) -> int:
        """Launches for all experts but the first, of grouped products and what is launched with each."""
        if not self._per_expert or rows is None:
            return 0
        looped = sum(kernel.launches for kernel in kernels if kernel.each or kernel.kind == "grouped_gemm")
        return looped * (int(rows.shape[-1]) - 1)

    def _plain(self, kernel: Kernel, direction: Direction) -> tuple[float, str]:
        """Time of *launches* equal kernels that share the work given."""
        key = (kernel, direction)
        if key not in self._known:
            kernel = self._in_known_format(kernel)
            n = kernel.launches
            traffic = kernel.bytes + kernel.fixed_bytes
            time = kernel_time(
                self._accelerator,
                kernel.kind,
                kernel.flops / n,
                traffic / n,
                kernel.shape,
                kernel.dtype,
                backward=direction != "forward",
                weight_gradient=direction == "weight gradient",
            )
            self._known[key] = (float(time.seconds) + self._gap_s(kernel)) * n, time.grade
        return self._known[key]

    def _routed(self, kernel: Kernel, rows: Rows, direction: Direction) -> tuple[Amount, str]:
        """Time on each behaviour: work per row times its rows, and the weights of the experts that have any."""
        total = rows.sum(axis=-1)
        kernel = self._in_known_format(kernel)
        n = kernel.launches
        time = kernel_time(
            self._accelerator,
            kernel.kind,
            kernel.flops * total / n,
            (kernel.bytes * total + kernel.fixed_bytes * (rows > 0).sum(axis=-1)) / n,
            kernel.shape,
            kernel.dtype,
            rows=rows,
            backward=direction != "forward",
            weight_gradient=direction == "weight gradient",
        )
        return (np.asarray(time.seconds, np.float64) + self._gap_s(kernel)) * n, time.grade

    def _gap_s(self, kernel: Kernel) -> float:
        """What the device loses before the kernel; a kernel without work is not launched."""
        return self._kernel_gap_s if kernel.flops or kernel.bytes or kernel.fixed_bytes else 0.0

    def _in_known_format(self, kernel: Kernel) -> Kernel:
        """The kernel as a part without fp8 runs it: in bf16, on operands twice as wide.

        Places of elements are worked out at no cost where no rate is on record.
        """
        if kernel.kind == "part_copy" and not self._accelerator.has_format(kernel.dtype):
            return replace(kernel, flops=0.0)
        if number_format(kernel.dtype) != "fp8" or self._accelerator.has_format("fp8"):
            return kernel
        return replace(kernel, dtype="bf16", bytes=2 * kernel.bytes, fixed_bytes=2 * kernel.fixed_bytes)


def adapters_of(operator: Operator, adapters: Mapping[str, Adapter]) -> tuple[Adapter, ...]:
    """The adapters on the weights that *operator* uses."""
    return tuple(adapters[name] for name in operator.weights if name in adapters)


def _adapter_forward(adapter: Adapter, tokens: int) -> tuple[Kernel, ...]:
    """Low-rank product h = x A, then y += scale * (h B), as peft runs it: two gemms, a product and a sum."""
    into, out = adapter.widths
    return (
        _gemm(adapter, tokens, adapter.rank, into),
        _gemm(adapter, tokens, out, adapter.rank),
        _rows(adapter, tokens, 4.0 * out),
        _rows(adapter, tokens, 6.0 * out),
    )


def _adapter_backward(adapter: Adapter, tokens: int) -> tuple[Kernel, ...]:
    """Gradients of the scaled result, of h, B, x and A, and the sum of x's gradient with the base weight's."""
    (into, out), rank = adapter.widths, adapter.rank
    return (
        _rows(adapter, tokens, 4.0 * out),
        _gemm(adapter, tokens, rank, out),
        _gemm(adapter, tokens, out, rank, over_tokens=True),
        _gemm(adapter, tokens, into, rank),
        _gemm(adapter, tokens, rank, into, over_tokens=True),
        _rows(adapter, tokens, 6.0 * into),
    )


def _gemm(adapter: Adapter, tokens: int, n: int, k: int, *, over_tokens: bool = False) -> Kernel:
    """A gemm [tokens, n] = [tokens, k] [k, n], or *over_tokens* [n, k] = [n, tokens] [tokens, k].

    On routed experts, work per row and one expert's weights.
    """
    if adapter.parameter.role == "routed_expert":
        return Kernel("grouped_gemm", 2.0 * n * k, 2.0 * (n + k), shape=(n, k), fixed_bytes=2.0 * n * k)
    shape = (n, k, tokens) if over_tokens else (tokens, n, k)
    return Kernel("gemm", 2.0 * tokens * n * k, 2.0 * (tokens * k + k * n + tokens * n), shape=shape)


def _rows(adapter: Adapter, tokens: int, row_bytes: float) -> Kernel:
    """An element-wise kernel that moves *row_bytes* for each token, or for each routed row."""
    return Kernel("elementwise", 0.0, row_bytes * (1 if adapter.parameter.role == "routed_expert" else tokens))

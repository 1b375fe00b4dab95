from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from small_jobs import Small, lower

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.operator import Kernel, Operator
from simulator.program.costs import Costs, Priced

H200 = load_accelerator("h200-sxm", Path())
A100 = load_accelerator("a100-80g-sxm", Path())
GAP_S = 2e-6
ELEMENTWISE = Kernel("elementwise", 0.0, 1e9)
GEMM = Kernel("gemm", 2.0 * 4096**3, 3 * 2.0 * 4096**2, shape=(4096, 4096, 4096))


def costs() -> Costs:
    return Costs(H200, "eager")


def seconds(kernel: Kernel, **direction: bool) -> float:
    return float(
        kernel_time(
            H200, kernel.kind, kernel.flops, kernel.bytes + kernel.fixed_bytes, kernel.shape, kernel.dtype, **direction
        ).seconds
    )


@pytest.mark.parametrize("kernel", [ELEMENTWISE, GEMM])
def test_a_kernel_costs_its_time_and_the_gap_before_it(kernel: Kernel) -> None:
    assert H200.kernel_gap_s == GAP_S
    assert costs().price(kernel) == Priced(ceil((seconds(kernel) + GAP_S) * 1e9), 1, "measured")


def test_equal_kernels_share_the_work_and_have_a_gap_each() -> None:
    one_s = seconds(replace(ELEMENTWISE, bytes=1e9 / 5))
    found = costs().price(replace(ELEMENTWISE, launches=5))
    assert (found.duration_ns, found.launches) == (ceil(5 * (one_s + GAP_S) * 1e9), 5)
    assert found.duration_ns > costs().price(ELEMENTWISE).duration_ns


def test_a_kernel_without_work_is_not_launched_and_leaves_no_gap() -> None:
    assert costs().price(Kernel("elementwise", 0.0, 0.0)).duration_ns == 0


def test_experts_without_rows_cost_the_gap_before_their_kernel() -> None:
    product = Kernel("grouped_gemm", 2.0 * 512 * 512, 2048.0, (512, 512), fixed_bytes=5e5)
    found = costs().forward(Operator("experts", (product,), rows="routed"), (), 600, np.array([[0, 0], [0, 4000]]))
    idle_ns, busy_ns = np.asarray(found.duration_ns).tolist()
    assert idle_ns == GAP_S * 1e9
    assert busy_ns > idle_ns + 2.0 * 512 * 512 * 4000 / 989e12 * 1e9


def test_the_gradient_of_weights_costs_only_where_they_are_trained() -> None:
    operator = Operator("linear", (GEMM,), (GEMM,), (GEMM,))
    frozen, trained = (costs().backward(operator, (), 4096, None, trained=trained) for trained in (False, True))
    assert (frozen.launches, trained.launches) == (1, 2)
    assert frozen.duration_ns == ceil((seconds(GEMM, backward=True) + GAP_S) * 1e9)
    weight_ns = ceil((seconds(GEMM, backward=True, weight_gradient=True) + GAP_S) * 1e9)
    assert trained.duration_ns == frozen.duration_ns + weight_ns


def test_of_two_prices_the_longer_tells_the_grade() -> None:
    short, long = Priced(10, 1, "datasheet"), Priced(20, 3, "measured")
    assert short + long == long + short == Priced(30, 4, "measured")


def test_the_host_pays_less_for_a_launch_from_compiled_code() -> None:
    assert Costs(H200, "eager").launch_ns == 31_000
    assert Costs(H200, "fused").launch_ns == 48_000
    assert Costs(H200, "compiled").launch_ns == 9_850


def test_arithmetic_in_a_format_that_a_part_lacks_runs_in_bf16_on_wider_operands() -> None:
    eight = replace(GEMM, dtype="fp8", bytes=3.0 * 4096**2)
    assert Costs(A100, "compiled").price(eight) == Costs(A100, "compiled").price(GEMM)
    assert costs().price(eight).duration_ns < costs().price(GEMM).duration_ns


def test_an_eager_host_takes_its_time_for_each_kernel(small: Small) -> None:
    tasks = lower(small("dense", "training.execution=eager")).tasks
    forward = [task for task in tasks if task.phase == "forward" and task.layer == 1 and task.stream == "compute"]
    launches = {task.name: task.host_ns / 31_000 for task in forward}
    assert launches["o_proj"] == 1
    # Squares, mean, root and products of the norm one by one.
    assert launches["input_layernorm"] > 5
    assert all(task.host_ns == 31_000 for task in tasks if task.collective is not None)

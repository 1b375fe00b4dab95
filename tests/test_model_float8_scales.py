"""MXFP8's scales in the order of tensor cores, and casts of experts one by one: launches worked out by hand."""

from dataclasses import replace

import pytest
from model_operators import one
from small_jobs import Small, lower

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.model.architecture import DenseFeedForward, MixtureOfExperts
from simulator.model.float8 import Float8, Scales
from simulator.model.operator import Kernel, Operator, Workload
from simulator.model.operators.float8 import in_float8
from simulator.model.operators.layers import component_operators

TOGETHER = Float8("mxfp8", experts=True, kept=True, keeps_cast_input=True, scales="together")


def run(part: DenseFeedForward | MixtureOfExperts, float8: Float8) -> tuple[Operator, ...]:
    workload = Workload((4096,), megatron=True, float8=float8)
    return in_float8(component_operators(part, 2048, workload), workload)


def launched(kernels: tuple[Kernel, ...], experts: int) -> int:
    """Launches on a rank with so many experts."""
    each = (kernel.each or kernel.kind == "grouped_gemm" for kernel in kernels)
    return sum(
        kernel.launches * (experts if one_by_one else 1) for kernel, one_by_one in zip(kernels, each, strict=True)
    )


@pytest.mark.parametrize(
    ("scales", "forward", "backward", "weights"),
    [
        ("as_cast", 8 + 8, 8 + 8, 8),
        # Two operands of each product, whose scales one kernel reorders for all experts.
        ("together", 8 + 2 + 8, 8 + 2 + 8, 2 + 8),
        # Zeros for both sets of scales of a cast, and a kernel for each expert's operand.
        ("one_by_one", 8 * (2 + 1) + 8 * (2 + 1), 8 * (2 + 1) + 8 * (2 + 1), 8 * (2 + 1)),
    ],
)
def test_eight_experts(scales: Scales, forward: int, backward: int, weights: int) -> None:
    product = one(run(MixtureOfExperts(64, 6, 1408), replace(TOGETHER, scales=scales)), "experts_fc1")
    found = product.forward, product.backward, product.backward_weight
    assert [launched(kernels, 8) for kernels in found] == [forward, backward, weights]


@pytest.mark.parametrize("kept", [True, False])
def test_the_room_of_scales_is_set_to_zero_for_each_copy_that_a_cast_makes(kept: bool) -> None:
    float8 = replace(TOGETHER, scales="one_by_one", kept=kept)
    product = one(run(MixtureOfExperts(64, 6, 1408), float8), "experts_fc1")
    zeros = [kernel for kernel in product.forward if kernel.kind == "fill"]
    # Of a row of 2,048 both copies; of an expert's weights of 2,048 x 2,816, cast in each pass, the one that is used.
    assert (zeros[0].bytes, zeros[0].fixed_bytes, zeros[0].launches) == (2 * 2048 / 32, 0, 2)
    of_weights = [] if kept else [(0, 2048 * 2816 / 32, 1)]
    assert [(kernel.bytes, kernel.fixed_bytes, kernel.launches) for kernel in zeros[1:]] == of_weights


def test_a_fused_grouped_mlp_activates_and_casts_what_lies_between_its_products() -> None:
    workload = Workload((4096,), megatron=True, float8=replace(TOGETHER, scales="as_cast"), fused_experts=True)
    operators = in_float8(component_operators(MixtureOfExperts(64, 6, 1408), 2048, workload), workload)
    kinds = {
        name: [[k.kind for k in way] for way in (operator.forward, operator.backward)]
        for name in ("experts_fc1", "experts_activation", "experts_fc2")
        for operator in [one(operators, name)]
    }
    assert kinds == {
        "experts_fc1": [["quantize", "grouped_gemm"], ["grouped_gemm"]],
        "experts_activation": [[], []],
        "experts_fc2": [["grouped_gemm"], ["quantize", "grouped_gemm"]],
    }


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("training.grouped_gemm=fused",), "found fused, which is Transformer Engine's for experts in mxfp8"),
        (("training.float8={recipe: tensorwise, scales: as_cast}",), "whose scales are in no other order"),
    ],
)
def test_what_other_stacks_do_not_have_is_refused(small: Small, overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Refused) as refused:
        assemble_job(*small("mixture", "training.zero=1", *overrides))
    assert problem in str(refused.value)


def test_a_dense_layer_reorders_the_scales_of_two_operands_before_each_product() -> None:
    product = one(run(DenseFeedForward(4096), TOGETHER), "down")
    assert [(k.kind, k.launches) for k in product.forward] == [("quantize", 1), ("elementwise", 2), ("gemm", 1)]
    # One scale for 32 values of (4,096 x 4,096) and of (4,096 x 2,048), read and written.
    assert product.forward[1].bytes == 2 * (4096 * 4096 + 4096 * 2048) / 32


def test_scales_of_earlier_steps_let_one_kernel_cast_all_experts() -> None:
    delayed = one(run(MixtureOfExperts(64, 6, 1408), replace(TOGETHER, recipe="delayed", scales=None)), "experts_fc1")
    assert launched(delayed.forward, 8) == 1 + 8


def test_other_recipes_have_no_such_order() -> None:
    own = one(run(DenseFeedForward(4096), replace(TOGETHER, recipe="tensorwise", scales=None)), "down")
    assert [k.kind for k in own.forward] == ["amax", "quantize", "gemm"]


def test_the_host_pays_a_bare_launch_for_each_further_expert(small: Small) -> None:
    overrides = ("parallel.ep=4", "training.zero=1", "training.float8={recipe: tensorwise, experts: true}")
    tasks = lower(small("mixture", *overrides)).tasks
    product = next(task for task in tasks if task.name == "experts_fc1" and task.phase == "forward")
    # Largest values, casts and products of four experts.
    assert product.host_ns == 3 * 48_000 + 3 * 3 * 9_850

"""What scales of rows cost beside casts and products: a layer of Llama 3 8B as torchao runs it, compiled and eager."""

from pathlib import Path

import pytest
from model_operators import model, named, one

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.model.float8 import Float8
from simulator.model.operator import Execution, Kernel, Operator, Workload
from simulator.model.operators.layers import layer_operators

LLAMA = model("llama-3.1-8b")
N, D, F = 8192, 4096, 14_336
SCALE = 3


def layer(tp: int = 1, execution: Execution = "compiled") -> tuple[Operator, ...]:
    return layer_operators(LLAMA, LLAMA.layers[0], Workload((N,), execution, float8=Float8("rowwise"), tp=tp))


def rescales(found: tuple[Kernel, ...]) -> list[tuple[float, float]]:
    return [(kernel.flops, kernel.bytes) for kernel in found if kernel.kind == "rescale"]


def test_gradients_are_multiplied_with_one_scale_and_then_by_those_of_rows():
    q = one(layer(), "q_proj")
    assert [k.dtype for k in q.forward if k.kind == "gemm"] == ["fp8/rowwise"]
    assert [k.dtype for k in q.backward + q.backward_weight if k.kind == "gemm"] == ["fp8", "fp8"]
    # read and written in bf16, one scale of fp64 an element
    assert rescales(q.backward) == [(SCALE * N * D, 4 * N * D)]
    assert rescales(q.backward_weight) == [(SCALE * D * D, 4 * D * D)]
    assert rescales(q.forward) == []


def test_the_last_of_three_gradients_goes_into_the_copy_where_each_part_works_out_its_scale():
    operators = layer(tp=8)
    gather, _ = named(operators, "tp_gather")
    q, k, v = named(operators, "q_proj", "k_proj", "v_proj")
    assert rescales(gather.backward) == [(8 * SCALE * N * D, 6 * N * D)]
    assert [len(rescales(one.backward)) for one in (q, k, v)] == [2, 2, 1]
    # the cast of the result's gradient, of which a rank holds an eighth of each row, and the product's rescaling
    assert rescales(q.backward) == [(SCALE * N * D / 8, 3 * N * D / 8), (SCALE * N * D, 4 * N * D)]
    assert rescales(q.backward_weight) == [(2 * SCALE * D * D / 8, 4 * D * D / 8)]


def test_two_gradients_are_summed_before_the_copy():
    _, gather = named(layer(tp=8), "tp_gather")
    (copy,) = gather.backward
    assert (copy.kind, copy.flops, copy.bytes) == ("part_copy", 8 * N * D, 4 * N * D)


def test_more_than_eight_parts_are_copied_one_by_one():
    gather, _ = named(layer(tp=16), "tp_gather")
    assert [kernel.kind for kernel in gather.backward] == ["copy"]


def test_an_input_in_parts_of_rows_is_cast_behind_a_pass_of_its_own():
    down = one(layer(tp=8), "down")
    assert [(k.kind, k.bytes) for k in down.forward[:2]] == [("reduction", 2 * N * F / 8), ("rescale", 3 * N * F / 8)]
    assert one(layer(), "down").forward[0].kind == "quantize_rows"


def test_an_eager_stack_makes_a_tensor_of_the_scales():
    q = one(layer(execution="eager"), "q_proj")
    assert [(k.kind, k.bytes) for k in q.backward[-2:]] == [("broadcast", 4 * N * D), ("broadcast", 8 * N * D)]


@pytest.mark.parametrize(
    ("elements", "scales", "measured_ms"),
    [  # kernels profiled on an H200: results of 98,304 and 65,536 tokens; gradients of weights
        (98_304 * 4096, 2, 3.826), (98_304 * 4096, 8, 13.31), (65_536 * 8192, 2, 5.108), (65_536 * 8192, 8, 17.77),
        (1792 * 4096, 2, 0.066), (3584 * 8192, 2, 0.260),
        # without tensor parallelism
        (14_336 * 4096, 1, 0.300), (4096 * 4096, 1, 0.086),
    ],
)  # fmt: skip
def test_what_was_measured(elements: int, scales: int, measured_ms: float):
    h200 = load_accelerator("h200-sxm", Path())
    work = SCALE * scales * elements, 4 * elements
    assert float(kernel_time(h200, "rescale", *work, dtype="fp64").seconds) * 1e3 == pytest.approx(
        measured_ms, rel=0.13
    )


def test_on_another_part_the_share_is_assumed():
    grades = {
        part: kernel_time(load_accelerator(part, Path()), "rescale", 1e12, 1.0, dtype="fp64").grade
        for part in ("h200-sxm", "h800-sxm")
    }
    assert grades == {"h200-sxm": "measured", "h800-sxm": "assumed"}

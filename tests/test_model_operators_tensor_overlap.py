"""Transfers between tp ranks beside products: Llama 3 8B on 4 ranks, one sequence of 8,192 tokens."""

import pytest
from model_operators import model, named, one

from simulator.model.float8 import Float8
from simulator.model.operator import Collective, Operator, Workload
from simulator.model.operators.layers import layer_operators
from simulator.model.operators.overlapped_tensor_parallel import buffer_bytes

LLAMA = model("llama-3.1-8b")
N, D, TP = 8192, 4096, 4
WHOLE = 2 * N * D
PIECE = Collective("send", "tp", WHOLE / TP, units=0)


def layer(workload: Workload) -> tuple[Operator, ...]:
    return layer_operators(LLAMA, LLAMA.layers[0], workload)


def compiled(float8: Float8 | None = None) -> tuple[Operator, ...]:
    return layer(Workload((N,), "compiled", tp=TP, overlap=True, float8=float8))


def fused() -> tuple[Operator, ...]:
    return layer(Workload((N,), "fused", tp=TP, overlap=True, megatron=True))


def passes(kernels) -> list[tuple[str, float]]:
    return [(kernel.kind, kernel.bytes) for kernel in kernels]


def test_pytorch_fetches_a_part_from_each_rank_beside_the_products_that_read_it():
    gather, _ = named(compiled(), "tp_gather")
    assert (gather.parts, gather.own_part, gather.forward_collectives) == (TP, True, (PIECE,))
    # its own tokens go into the buffer; the copy around the library's gather is gone
    assert passes(gather.forward) == [("copy", 2 * WHOLE / TP)]
    assert {operator.parts for operator in named(compiled(), "q_proj", "k_proj", "v_proj", "gate", "up")} == {TP}
    # the gradient of q, k and v is a sum of three products, which no scatter follows in parts
    assert (gather.parts_back, gather.backward_collectives) == (1, (Collective("reduce_scatter", "tp", WHOLE),))
    assert passes(gather.backward) == [("part_copy", 4 * WHOLE)]


def test_pytorch_sums_what_it_fetched_behind_a_product():
    scatter, _ = named(compiled(), "tp_scatter")
    assert (scatter.parts, scatter.own_part, scatter.forward_collectives) == (TP, True, (PIECE,))
    assert passes(scatter.forward) == [("reduction", WHOLE * (1 + 1 / TP))]
    assert (scatter.parts_back, scatter.own_part_back, scatter.backward_collectives) == (TP, True, (PIECE,))
    for product in named(compiled(), "o_proj", "down"):
        assert (product.parts, product.parts_back) == (TP, TP)


def test_pytorch_copies_what_it_gathered_for_the_gradient_of_weights_unless_a_cast_reads_it():
    turned = {o.name for o in compiled() if o.parts == TP and passes(o.backward_weight)[:1] == [("copy", 2 * WHOLE)]}
    assert turned == {"q_proj", "gate", "o_proj", "down"}
    cast = compiled(Float8("tensorwise"))
    assert not any(kernel.kind == "copy" for operator in cast for kernel in operator.backward_weight)


def test_casts_to_fp8_with_one_scale_come_before_the_parts_and_halve_them():
    gather, _ = named(compiled(Float8("tensorwise")), "tp_gather")
    assert [kernel.kind for kernel in gather.forward] == ["amax_compiled", "quantize", "copy"]
    assert gather.forward_collectives == (Collective("send", "tp", WHOLE / 2 / TP, units=0),)


def test_scales_of_rows_are_found_behind_the_gather_which_stays_whole():
    operators = compiled(Float8("rowwise"))
    gather, scatter = named(operators, "tp_gather", "tp_scatter")[:2]
    assert (gather.parts, gather.forward_collectives) == (1, (Collective("all_gather", "tp", WHOLE),))
    assert (scatter.parts, scatter.parts_back) == (TP, 1)
    assert (one(operators, "o_proj").parts, one(operators, "o_proj").parts_back) == (TP, 1)


def test_transformer_engine_goes_round_scatters_four_parts_and_moves_the_rest_beside_gradients():
    operators = fused()
    gather, scatter = named(operators, "tp_gather", "tp_scatter")[:2]
    assert (gather.parts, gather.own_part, gather.forward_collectives) == (TP, True, (PIECE,))
    assert gather.backward_collectives == ()
    assert (scatter.parts, scatter.own_part) == (4, False)
    assert scatter.forward_collectives == (Collective("reduce_scatter", "tp", WHOLE / 4, units=16),)
    assert (scatter.parts_back, scatter.backward_collectives) == (TP, (PIECE,))
    again, summed = one(operators, "qkv_proj").beside_gradients
    assert (again.operation, again.bytes, again.units) == ("all_gather", WHOLE, 16)
    assert (summed.operation, summed.bytes, summed.units) == ("reduce_scatter", WHOLE, 16)
    # the gathered tensor is in a buffer that stays
    assert gather.output_bytes == 0


@pytest.mark.parametrize(
    "workload",
    [
        Workload((N,), "fused", tp=TP, overlap=True),
        Workload((N,), "eager", tp=TP, overlap=True),
        Workload((N,), "compiled", overlap=True),
    ],
    ids=["fused under FSDP", "eager", "one rank"],
)
def test_other_stacks_do_not(workload):
    assert {(operator.parts, operator.parts_back) for operator in layer(workload)} == {(1, 1)}


def test_buffers():
    # two ranks' tokens
    assert buffer_bytes(Workload((N,), "compiled", tp=TP, overlap=True), D) == 2 * WHOLE / TP
    # ten whole tensors, of which fp8 halves the six that are gathered
    assert buffer_bytes(Workload((N,), "fused", tp=TP, overlap=True), D) == 10 * WHOLE
    assert buffer_bytes(Workload((N,), "fused", tp=TP, overlap=True, float8=Float8("delayed")), D) == 7 * WHOLE

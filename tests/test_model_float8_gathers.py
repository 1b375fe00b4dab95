"""What tp ranks gather in fp8: Llama 3 8B, compiled, with one scale a tensor."""

import pytest
from model_operators import model, named, one

from simulator.model.float8 import Float8, Recipe
from simulator.model.operator import Collective, Execution, Operator, Workload
from simulator.model.operators.layers import layer_operators

LLAMA = model("llama-3.1-8b")
N, D, F, TP = 8192, 4096, 14_336, 4


def layer(recipe: Recipe = "tensorwise", execution: Execution = "compiled", tp: int = TP) -> tuple[Operator, ...]:
    workload = Workload((N,), execution, float8=Float8(recipe), tp=tp)
    return layer_operators(LLAMA, LLAMA.layers[0], workload)


def kernels(found) -> list[tuple[str, float]]:
    return [(kernel.kind, kernel.bytes) for kernel in found]


def test_inputs_are_cast_on_a_ranks_own_tokens_and_gathered_in_one_byte():
    gather, _ = named(layer(), "tp_gather")
    own = N * D / TP
    # the largest value, the cast, and the copy of the gathered tensor
    assert kernels(gather.forward) == [("amax_compiled", 2 * own), ("quantize", 3 * own), ("part_copy", 2 * N * D)]
    assert gather.forward_collectives == (Collective("all_gather", "tp", N * D),)
    assert gather.output_bytes == N * D
    assert gather.backward_collectives == (Collective("reduce_scatter", "tp", 2 * N * D),)


def test_who_reads_what_was_gathered_casts_weights_alone_and_keeps_one_byte():
    query, key = named(layer(), "q_proj", "k_proj")
    weight = D * D / TP
    assert kernels(query.forward)[:-1] == [("amax_compiled", 2 * weight), ("quantize", 3 * weight)]
    # turned once for the gradients of all three weights
    assert kernels(query.backward_weight)[0] == ("quantize_transposed", 2 * N * D)
    assert [kernel.kind for kernel in key.backward_weight] == ["gemm"]
    assert [(tensor.name, tensor.bytes) for tensor in query.saved] == [("mixer_input", N * D)]


def test_gradients_of_scattered_sums_are_gathered_in_one_byte():
    scatter, _ = named(layer(), "tp_scatter")
    assert scatter.forward_collectives == (Collective("reduce_scatter", "tp", 2 * N * D),)
    assert scatter.backward_collectives == (Collective("all_gather", "tp", N * D),)
    own = N * D / TP
    assert kernels(scatter.backward) == [("amax_compiled", 2 * own), ("quantize", 3 * own), ("part_copy", 2 * N * D)]
    assert kernels(one(layer(), "down").backward)[0] == ("quantize_transposed", 2 * N * D)


@pytest.mark.parametrize(("recipe", "execution"), [("rowwise", "compiled"), ("tensorwise", "eager")])
def test_other_recipes_and_stacks_gather_in_two_bytes(recipe: Recipe, execution: Execution):
    operators = layer(recipe, execution)
    assert {c.bytes for o in operators for c in o.forward_collectives + o.backward_collectives} == {2 * N * D}


def test_one_rank_casts_as_ever():
    assert [kernel.kind for kernel in one(layer(tp=1), "q_proj").forward[:2]] == ["amax_compiled", "quantize"]

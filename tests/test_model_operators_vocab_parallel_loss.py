"""Megatron-LM's own loss over 128 tokens and a vocabulary of 1,000, by hand: one fp32 tensor, written over in place."""

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import loss_operators

MODEL = Architecture(model_type="llama", hidden=64, vocabulary=1000, layers=())
WIDE = 128 * 1000 * 4


def operators(workload: Workload) -> dict[str, Operator]:
    return {one.name: one for one in loss_operators(MODEL, workload, "vocab_parallel")}


def test_seven_kernels_forward_and_three_back():
    found = operators(Workload((128,)))["cross_entropy"]
    # Cast, maximum, subtraction, the label's logit, exponential, sum, quotient.
    assert [k.bytes for k in found.forward] == [1.5 * WIDE, WIDE, 2 * WIDE, 128 * 12, 2 * WIDE, WIDE, 2 * WIDE]
    # The label's one, the gradient of the token's loss, the cast.
    assert [k.bytes for k in found.backward] == [128 * 12, 2 * WIDE, 1.5 * WIDE]


def test_kept_are_the_probabilities_and_made_is_their_gradient_in_bf16():
    found = operators(Workload((128,)))
    assert {t.name: t.bytes for t in found["cross_entropy"].saved} == {"probabilities": WIDE}
    assert found["lm_head"].output_bytes == WIDE / 2


def test_a_tensor_parallel_rank_has_its_share_of_the_vocabulary():
    assert operators(Workload((128,), tp=4))["cross_entropy"].saved[0].bytes == WIDE / 4

"""A compiler's loss over 128 tokens and a vocabulary of 1,000, by hand: logits in bf16 and two fp32 numbers a token."""

import pytest

from simulator.model.architecture import Architecture
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import loss_operators

MODEL = Architecture(model_type="llama", hidden=64, vocabulary=1000, layers=())
LOGITS = 128 * 1000 * 2


def loss(workload: Workload) -> Operator:
    return next(o for o in loss_operators(MODEL, workload, "compiled") if o.name == "cross_entropy")


@pytest.mark.parametrize("execution", ["eager", "compiled", "fused"])
def test_logits_are_read_once_forward_and_once_more_for_their_gradient(execution):
    found = loss(Workload((128,), execution=execution))
    assert [k.bytes for k in found.forward] == [LOGITS]
    assert [k.bytes for k in found.backward] == [2 * LOGITS]


def test_kept_are_the_logits_and_two_numbers_a_token():
    found = loss(Workload((128,)))
    assert {t.name: t.bytes for t in found.saved} == {"logits": LOGITS, "loss_statistics": 2 * 4 * 128}
    assert found.workspace_bytes == found.backward_workspace_bytes == 0


def test_a_tensor_parallel_rank_has_its_share_of_the_vocabulary():
    assert loss(Workload((128,), tp=4)).forward[0].bytes == LOGITS / 4

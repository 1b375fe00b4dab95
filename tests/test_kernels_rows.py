from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distance, distances, drawn

from kernels import gated_unit, permutation, rms_norm
from kernels.reference import gated_unit as plain_unit
from kernels.reference import permutation as plain_permutation
from kernels.reference import rms_norm as plain_norm

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")
FP32, BF16 = 1e-6, 8e-3


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (5, 100), (7, 1025)])
def test_rms_norm_and_its_gradients(rows: int, width: int) -> None:
    inputs = [drawn(rows, width) * 3, drawn(width, seed=1)]
    assert max(distances(rms_norm.rms_norm, plain_norm.rms_norm, inputs)) < FP32
    inputs = [x.bfloat16() for x in inputs]
    assert max(distances(rms_norm.rms_norm, plain_norm.rms_norm, inputs)) < BF16


def test_rms_norm_says_which_widths_disagree() -> None:
    with pytest.raises(ValueError, match="rows of 8 with a weight of 9"):
        rms_norm.rms_norm(drawn(2, 8), drawn(9))


@pytest.mark.parametrize("name", ["swiglu", "situ"])
@pytest.mark.parametrize(("rows", "width"), [(1, 2), (3, 70), (2, 2500)])
def test_gated_units_and_their_gradients(name: str, rows: int, width: int) -> None:
    inputs = [drawn(rows, width) * 8]
    assert max(distances(getattr(gated_unit, name), getattr(plain_unit, name), inputs)) < FP32
    inputs = [x.bfloat16() for x in inputs]
    assert max(distances(getattr(gated_unit, name), getattr(plain_unit, name), inputs)) < BF16


def test_situ_stays_finite_far_out() -> None:
    far = torch.tensor([[-1e4, 1e4, 1e4, -1e4]])
    assert gated_unit.situ(far).tolist() == [[0.0, -100.0]]


def choices(tokens: int, of_token: int, experts: int) -> torch.Tensor:
    scores = drawn(tokens, experts, seed=5)
    return scores.topk(of_token, dim=1).indices


def test_rows_lie_in_order_of_expert_then_token() -> None:
    expert_TK = torch.tensor([[2, 0], [0, 7], [3, 2]])
    row_TK, ends_E = permutation.expert_order(expert_TK, 4)
    assert row_TK.tolist() == [[2, 0], [1, -1], [4, 3]]
    assert ends_E.tolist() == [2, 2, 4, 5]


@pytest.mark.parametrize(("tokens", "of_token", "experts", "here", "width"), [(1, 1, 1, 1, 4), (9, 3, 8, 5, 33)])
def test_rows_out_to_experts_and_back(tokens: int, of_token: int, experts: int, here: int, width: int) -> None:
    row_TK, ends_E = permutation.expert_order(choices(tokens, of_token, experts), here)
    rows = int(ends_E[-1])
    out = partial(permutation.permute, row_TK=row_TK, rows=rows)
    plain_out = partial(plain_permutation.permute, row_TK=row_TK, rows=rows)
    assert max(distances(out, plain_out, [drawn(tokens, width)])) < FP32

    inputs = [drawn(rows, width, seed=2), drawn(tokens, of_token, seed=3)]
    back = lambda y, weight: permutation.unpermute(y, row_TK, weight)  # noqa: E731
    plain_back = lambda y, weight: plain_permutation.unpermute(y, row_TK, weight)  # noqa: E731
    assert max(distances(back, plain_back, inputs)) < FP32


def test_sum_and_norm_in_one_kernel() -> None:
    row_TK, ends_E = permutation.expert_order(choices(11, 4, 6), 6)
    inputs = [drawn(int(ends_E[-1]), 50, seed=2), drawn(11, 4, seed=3), drawn(50, seed=4)]
    fused = lambda y, weight, scale: permutation.combine_norm(y, row_TK, weight, scale)  # noqa: E731
    plain = lambda y, weight, scale: plain_permutation.combine_norm(y, row_TK, weight, scale)  # noqa: E731
    assert max(distances(fused, plain, inputs)) < 3 * FP32


def test_a_token_whose_experts_are_all_elsewhere_gets_zero() -> None:
    row_TK, ends_E = permutation.expert_order(torch.tensor([[0], [9]]), 1)
    x_TD = permutation.unpermute(drawn(int(ends_E[-1]), 6), row_TK, drawn(2, 1, seed=1))
    assert x_TD[1].tolist() == [0.0] * 6
    assert distance(x_TD[0], drawn(1, 6)[0] * drawn(2, 1, seed=1)[0, 0]) < FP32


def test_tokens_whose_experts_are_all_elsewhere_send_no_row() -> None:
    row_TK, ends_E = permutation.expert_order(torch.tensor([[7, 9], [9, 8]]), 3)
    assert ends_E.tolist() == [0, 0, 0]
    x = drawn(2, 6).requires_grad_()
    y = permutation.permute(x, row_TK, rows=0)
    back = permutation.unpermute(y, row_TK, drawn(2, 2, seed=1))
    back.sum().backward()
    assert y.shape == (0, 6)
    assert back.tolist() == [[0.0] * 6] * 2
    assert x.grad.tolist() == [[0.0] * 6] * 2


def test_experts_without_rows_lie_between_those_with_some() -> None:
    row_TK, ends_E = permutation.expert_order(torch.tensor([[4, 1], [1, 4], [4, 6]]), 6)
    assert ends_E.tolist() == [0, 2, 2, 2, 5, 5]
    x = drawn(3, 7)
    assert torch.equal(permutation.permute(x, row_TK, rows=5), x[torch.tensor([0, 1, 0, 1, 2])])


@pytest.mark.parametrize("kernel", [lambda x: rms_norm.rms_norm(x, drawn(8)), gated_unit.swiglu, gated_unit.situ])
def test_no_rows_give_no_rows(kernel) -> None:
    assert len(kernel(drawn(0, 8))) == 0

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distances, drawn

from kernels import grouped_gemm
from kernels.reference import grouped_gemm as plain


@pytest.mark.parametrize(
    ("rows_of_experts", "width", "out"),
    [
        pytest.param([1], 8, 16, id="one row"),
        pytest.param([0, 3, 0, 70, 1, 0], 40, 72, id="empty experts, few rows"),
        pytest.param([300, 5, 129], 72, 264, id="large tiles, skewed"),
    ],
)
def test_grouped_gemm_and_its_gradients(rows_of_experts: list[int], width: int, out: int) -> None:
    x = drawn(sum(rows_of_experts), width, dtype=torch.float16)
    w = drawn(len(rows_of_experts), width, out, seed=1, dtype=torch.float16)
    ends = torch.tensor(rows_of_experts).cumsum(0).int()
    fused = partial(grouped_gemm.grouped_gemm, ends_E=ends)
    assert max(distances(fused, partial(plain.grouped_gemm, ends_E=ends), [x, w])) < 1e-3


def test_experts_that_are_all_empty_get_no_gradient() -> None:
    x, w = (drawn(*shape, dtype=torch.float16).requires_grad_() for shape in ((0, 8), (3, 8, 16)))
    y = grouped_gemm.grouped_gemm(x, w, ends_E=torch.zeros(3).int())
    y.backward(torch.zeros(0, 16).half())
    assert (y.shape, x.grad.shape) == ((0, 16), (0, 8))
    assert w.grad.abs().max() == 0.0


def test_grouped_gemm_says_which_widths_it_cannot_load() -> None:
    with pytest.raises(ValueError, match=r"weights of \(7, 16\)"):
        grouped_gemm.grouped_gemm(drawn(2, 7), drawn(1, 7, 16), torch.tensor([2]).int())

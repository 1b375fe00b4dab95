import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn

from kernels import decode_steps
from kernels.reference import decode_steps as plain


@pytest.mark.parametrize("width", [16, 100])
def test_the_sum_is_kept_and_normalised(width: int) -> None:
    x, residual, weight = (drawn(3, width, seed=seed) for seed in (0, 1, 2))
    wanted, wanted_sum = plain.add_norm(x, residual, weight[0])
    found = decode_steps.add_norm(x, residual, weight[0])
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(residual, wanted_sum)


@pytest.mark.parametrize(("experts", "top"), [(8, 1), (60, 6), (256, 8)])
def test_the_bias_takes_part_in_the_choice_alone(experts: int, top: int) -> None:
    logit, bias = drawn(5, experts), drawn(1, experts, seed=1)[0]
    expert, weight = decode_steps.choose_experts(logit, bias, top)
    wanted_expert, wanted_weight = plain.choose_experts(logit, bias, top)
    assert expert.tolist() == wanted_expert.tolist()
    torch.testing.assert_close(weight, wanted_weight)

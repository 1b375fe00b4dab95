from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distances, drawn

from kernels import gated_norm, gated_unit, grouped_gemm, loss, permutation, residual_mix, short_convolution
from kernels.reference import gated_norm as plain_gate
from kernels.reference import gated_unit as plain_unit
from kernels.reference import residual_mix as plain_mix
from kernels.reference import short_convolution as plain_convolution
from kernels.reference.loss import plain_loss

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")
FP32, BF16 = 2e-6, 1e-2


def worst(kernel, reference, inputs: list) -> float:
    """Largest distance in fp32, once that of bf16 is seen to be small."""
    assert max(distances(kernel, reference, [x.bfloat16() for x in inputs])) < BF16
    return max(distances(kernel, reference, inputs))


@pytest.mark.parametrize(("sequences", "length", "channels"), [(1, 1, 3), (1, 21, 130), (3, 5, 8)])
def test_short_convolution_keeps_within_its_sequences(sequences: int, length: int, channels: int) -> None:
    weight, x = drawn(channels, 4, seed=1), drawn(sequences * length, channels)
    ours, theirs = (
        partial(way.short_convolution, w_C4=weight, length=length) for way in (short_convolution, plain_convolution)
    )
    assert worst(ours, theirs, [x]) < FP32


@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 16), (7, 3, 33)])
def test_gated_norm_and_its_gradients(tokens: int, heads: int, width: int) -> None:
    x, gate, weight = drawn(tokens, heads, width) * 3, drawn(tokens, heads, width, seed=1), drawn(width, seed=2)
    ours, theirs = (partial(way.gated_norm, weight=weight) for way in (gated_norm, plain_gate))
    assert worst(ours, theirs, [x, gate]) < FP32


def test_sigmoid_gate_and_its_gradients() -> None:
    inputs = [drawn(3, 1000), drawn(3, 1000, seed=1)]
    assert worst(gated_norm.sigmoid_gate, plain_gate.sigmoid_gate, inputs) < FP32


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (5, 100)])
def test_residual_mix_and_its_gradients(tokens: int, width: int) -> None:
    vectors = {"scale_D": drawn(width, seed=2), "score_D": drawn(width, seed=3)}
    ours, theirs = (partial(way.residual_mix, **vectors) for way in (residual_mix, plain_mix))
    assert worst(ours, theirs, [drawn(tokens, width), drawn(tokens, width, seed=1) * 3]) < FP32


@pytest.mark.parametrize(("rows", "width"), [(3, 70), (2, 2500)])
def test_weighted_situ_and_the_gradient_of_its_weights(rows: int, width: int) -> None:
    plain = lambda x, weight: plain_unit.situ(x.float()) * weight[:, None].float()  # noqa: E731
    assert worst(gated_unit.situ, plain, [drawn(rows, width) * 4, drawn(rows, seed=1)]) < FP32


@pytest.mark.parametrize(("tokens", "of_token"), [(1, 1), (9, 3), (6, 1)])
def test_sum_of_rows_gives_each_row_its_tokens_gradient(tokens: int, of_token: int) -> None:
    row = torch.randperm(tokens * of_token, generator=torch.Generator().manual_seed(1)).view(tokens, of_token).int()
    ours, theirs = partial(permutation.sum_rows, row_TK=row), lambda y: y[row.long()].sum(1)
    assert worst(ours, theirs, [drawn(tokens * of_token, 33)]) < FP32


def test_loss_of_logits_leaves_their_gradient_in_their_place() -> None:
    x, w, label = drawn(21, 16), drawn(300, 16, seed=1), torch.arange(21)
    label[::7] = loss.IGNORED
    ours = lambda x, w: loss.logit_loss(x @ w.T, label)  # noqa: E731
    assert worst(ours, partial(plain_loss, label_N=label), [x, w]) < FP32


def test_frozen_experts_keep_no_rows() -> None:
    x, w, ends = drawn(6, 8).requires_grad_(), drawn(2, 8, 16, seed=1), torch.tensor([2, 6], dtype=torch.int32)
    kept = grouped_gemm.grouped_gemm(x, w, ends).grad_fn.saved_tensors
    assert kept[0] is None
    assert [tuple(tensor.shape) for tensor in kept[1:]] == [(2, 8, 16), (2,)]

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distances, drawn

from kernels import loss
from kernels.reference.loss import plain_loss

SMALL_BUDGET = 6000


def head(rows: int, width: int, words: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    x, w = drawn(rows, width), drawn(words, width, seed=1)
    label = torch.randint(words, (rows,), generator=torch.Generator().manual_seed(2))
    label[:: max(2, rows // 2)] = loss.IGNORED
    return [x, w], label


@pytest.mark.parametrize(("rows", "width", "words"), [(2, 5, 3), (37, 16, 300)])
@pytest.mark.parametrize("budget", [SMALL_BUDGET, loss.BUDGET_BYTES])
def test_cut_loss_and_its_gradients(rows: int, width: int, words: int, budget: int) -> None:
    inputs, label = head(rows, width, words)
    cut = lambda x, w: loss.cut_loss(x, w, label, budget)  # noqa: E731
    assert max(distances(cut, partial(plain_loss, label_N=label), inputs)) < 2e-6


@pytest.mark.parametrize("chunk", [1, 10, 1024])
def test_chunk_loss_and_its_gradients(chunk: int) -> None:
    inputs, label = head(21, 16, 300)
    chunked = lambda x, w: loss.chunk_loss(x, w, label, chunk)  # noqa: E731
    assert max(distances(chunked, partial(plain_loss, label_N=label), inputs)) < 2e-6


def test_cut_loss_in_bf16() -> None:
    inputs, label = head(37, 16, 300)
    cut = lambda x, w: loss.cut_loss(x, w, label, SMALL_BUDGET)  # noqa: E731
    assert max(distances(cut, partial(plain_loss, label_N=label), [x.bfloat16() for x in inputs])) < 2e-2


def test_a_frozen_head_gets_no_gradient() -> None:
    (x, w), label = head(5, 8, 20)
    loss.cut_loss(x.requires_grad_(), w, label).backward()
    assert x.grad is not None
    assert w.grad is None


@pytest.mark.parametrize(("width", "words", "sides"), [(4096, 128256, (384, 128256)), (7168, 163840, (512, 83_968))])
def test_logits_of_as_many_rows_as_the_budget_holds(width: int, words: int, sides: tuple[int, int]) -> None:
    found = loss.sides(8192, width, words, loss.BUDGET_BYTES, 2)
    assert found == sides
    sums = 4 * width * found[0] if found[1] < words else 0
    assert 2 * found[0] * found[1] + sums <= loss.BUDGET_BYTES


def test_without_gradients_the_loss_is_all_it_takes() -> None:
    (x, w), label = head(37, 16, 300)
    assert loss.cut_loss(x, w, label) == pytest.approx(float(plain_loss(x, w, label)), rel=1e-6)


def test_rows_whose_labels_are_all_ignored_give_what_pytorch_gives() -> None:
    (x, w), label = head(5, 8, 20)
    label[:] = loss.IGNORED
    assert loss.cut_loss(x, w, label).isnan()
    assert plain_loss(x, w, label).isnan()

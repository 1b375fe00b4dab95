import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn, in_order

from kernels import indexer
from kernels.reference import indexer as plain

HEADS, WIDTH = 32, 16


def inputs(queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = drawn(queries, HEADS, WIDTH, dtype=torch.float16), drawn(keys, WIDTH, seed=1, dtype=torch.float16)
    return q, k, drawn(queries, HEADS, seed=2)


@pytest.mark.parametrize(
    ("queries", "keys", "top"),
    [
        pytest.param(1, 1, 32, id="one key"),
        pytest.param(7, 9, 32, id="fewer keys than are chosen"),
        pytest.param(4, 500, 32, id="lists that overflow again and again"),
        pytest.param(70, 70, 32, id="all queries of a sequence"),
        pytest.param(3, 1700, 512, id="steps of several tiles"),
    ],
)
def test_the_best_keys_of_each_query(queries: int, keys: int, top: int) -> None:
    q, k, weight = inputs(queries, keys)
    chosen = indexer.choose_keys(q, k, weight, top)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float(), weight, top))


def test_scores_that_rise_with_every_key_fill_the_list_at_every_step() -> None:
    q, k, weight = inputs(3, 400)
    q[:], k[:], weight[:] = 1.0, torch.arange(400.0).half()[:, None] / 8, 1.0
    chosen = indexer.choose_keys(q, k, weight, 32)
    assert in_order(chosen) == [list(range(366, 398)), list(range(367, 399)), list(range(368, 400))]


def test_the_best_keys_may_all_lie_in_one_place_of_their_steps() -> None:
    q, k, weight = inputs(1, 400)
    q[:], weight[:] = 1.0, 1.0
    k[:] = torch.where(torch.arange(400) % 8 == 3, 1 + torch.arange(400) / 512, 0.5).half()[:, None]
    chosen = indexer.choose_keys(q, k, weight, 32)
    assert in_order(chosen) == [list(range(147, 400, 8))]


def test_equal_scores_are_chosen_once_each() -> None:
    q, k, weight = inputs(1, 200)
    q[:], k[:], weight[:] = 1.0, 1.0, 1.0
    chosen = indexer.choose_keys(q, k, weight, 32)[0].tolist()
    assert len(set(chosen)) == 32
    assert all(0 <= key < 200 for key in chosen)


def test_scales_of_keys_that_were_rounded() -> None:
    q, k, weight = inputs(5, 164)
    scale = torch.rand(164, generator=torch.Generator().manual_seed(3)) + 0.1
    chosen = indexer.choose_keys(q, k, weight, 32, scale)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float() * scale[:, None], weight, 32))


@pytest.mark.parametrize("heads", [16, 64, 128])
def test_any_number_of_heads(heads: int) -> None:
    q, k = drawn(5, heads, WIDTH, dtype=torch.float16), drawn(90, WIDTH, seed=1, dtype=torch.float16)
    weight = drawn(5, heads, seed=2)
    chosen = indexer.choose_keys(q, k, weight, 32)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float(), weight, 32))


def test_rounding_to_fp8_keeps_the_largest_of_a_row_exact() -> None:
    rounded, scale = indexer.rounded_to_fp8(torch.tensor([[3.5, -7.0, 0.0]]))
    assert (rounded.float() * scale[:, None]).tolist() == [[3.5, -7.0, 0.0]]


def test_widths_that_cannot_be_tiled_are_all_named() -> None:
    q, k, weight = torch.zeros(2, 3, 24), torch.zeros(1, 24), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="heads is 3; width is 24; 2 queries of 3 heads with 1 keys"):
        indexer.choose_keys(q, k, weight, 32)

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn

from kernels import indexer
from kernels.reference import indexer as plain

HEADS, WIDTH = 32, 16


def inputs(queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = drawn(queries, HEADS, WIDTH, dtype=torch.float16), drawn(keys, WIDTH, seed=1, dtype=torch.float16)
    return q, k, drawn(queries, HEADS, seed=2)


def in_order(chosen: torch.Tensor) -> list[list[int]]:
    return chosen.sort(dim=1).values.tolist()


@pytest.mark.parametrize(
    ("queries", "keys", "top"),
    [
        pytest.param(1, 1, 4, id="one key"),
        pytest.param(7, 9, 16, id="fewer keys than are chosen"),
        pytest.param(4, 120, 8, id="lists that overflow again and again"),
        pytest.param(26, 26, 8, id="all queries of a sequence"),
    ],
)
def test_the_best_keys_of_each_query(queries: int, keys: int, top: int) -> None:
    q, k, weight = inputs(queries, keys)
    chosen = indexer.choose_keys(q, k, weight, top)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float(), weight, top))


def test_scores_that_rise_with_every_key_fill_the_list_at_every_step() -> None:
    q, k, weight = inputs(3, 100)
    q[:], k[:], weight[:] = 1.0, torch.arange(100.0).half()[:, None] / 8, 1.0
    chosen = indexer.choose_keys(q, k, weight, 8)
    assert in_order(chosen) == [list(range(90, 98)), list(range(91, 99)), list(range(92, 100))]


def test_equal_scores_are_chosen_once_each() -> None:
    q, k, weight = inputs(1, 60)
    q[:], k[:], weight[:] = 1.0, 1.0, 1.0
    chosen = indexer.choose_keys(q, k, weight, 8)[0].tolist()
    assert len(set(chosen)) == 8
    assert all(0 <= key < 60 for key in chosen)


def test_scales_of_keys_that_were_rounded() -> None:
    q, k, weight = inputs(5, 64)
    scale = torch.rand(64, generator=torch.Generator().manual_seed(3)) + 0.1
    chosen = indexer.choose_keys(q, k, weight, 8, scale)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float() * scale[:, None], weight, 8))


def test_rounding_to_fp8_keeps_the_largest_of_a_row_exact() -> None:
    rounded, scale = indexer.rounded_to_fp8(torch.tensor([[3.5, -7.0, 0.0]]))
    assert (rounded.float() * scale[:, None]).tolist() == [[3.5, -7.0, 0.0]]


def test_widths_that_cannot_be_tiled_are_all_named() -> None:
    q, k, weight = torch.zeros(2, 3, 24), torch.zeros(1, 24), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="heads is 3; width is 24; 2 queries of 3 heads with 1 keys"):
        indexer.choose_keys(q, k, weight, 8)

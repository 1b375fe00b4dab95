import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn, in_order

from kernels import indexer_stored, topk
from kernels.reference import indexer as plain


@pytest.mark.parametrize(
    ("rows", "scores", "top"),
    [
        pytest.param(1, 1, 32, id="one score"),
        pytest.param(7, 33, 32, id="one more than are chosen"),
        pytest.param(5, 257, 64, id="two blocks and one score"),
        pytest.param(2, 30_001, 2048, id="lists that overflow"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_of_each_row(rows: int, scores: int, top: int, dtype: torch.dtype) -> None:
    score = torch.stack([torch.randperm(scores, generator=torch.Generator().manual_seed(i)) for i in range(rows)])
    score = (score / 16 - 500).to(dtype)
    wanted = score.float().sort(dim=1, descending=True).values[:, :top]
    chosen = topk.best(score, top)
    assert (chosen >= 0).sum(dim=1).tolist() == [min(top, scores)] * rows
    there = chosen.long().sort(dim=1, descending=True).values[:, : min(top, scores)]
    assert all(len(set(row)) == len(row) for row in there.tolist())
    assert score.float().gather(1, there).sort(dim=1, descending=True).values.equal(wanted)


def test_scores_that_rise_with_every_place_fill_the_list_at_every_step() -> None:
    score = torch.arange(20_000.0)[None]
    assert in_order(topk.best(score, 2048)) == [list(range(17_952, 20_000))]


def test_a_list_is_cut_although_few_of_it_reach_the_bound_of_the_block_that_overflows_it() -> None:
    score = torch.zeros(5, 128)
    score[:4, :32] = torch.arange(1.0, 5.0)[:, None] + torch.arange(32) / 100
    score[0, 20:32] += 4.0
    score[4, :40] = 4.5 + torch.arange(40) / 100
    score = score.view(1, -1)
    assert in_order(topk.best(score, 32)) == in_order(score.topk(32, dim=1).indices)


def test_equal_scores_are_chosen_once_each() -> None:
    chosen = topk.best(torch.ones(1, 300), 32)[0].tolist()
    assert len(set(chosen)) == 32
    assert all(0 <= place < 300 for place in chosen)


def test_rows_that_see_one_score_more_each() -> None:
    score = torch.arange(100.0).flip(0).repeat(3, 1)
    assert in_order(topk.best(score, 32, past=1)) == [
        [-1] * 30 + [0, 1],
        [-1] * 29 + [0, 1, 2],
        [-1] * 28 + [0, 1, 2, 3],
    ]


def test_scores_of_minus_infinity_are_no_scores() -> None:
    score = torch.full((1, 50), -torch.inf)
    score[0, 7], score[0, 9] = -3.0, torch.finfo(torch.float32).min
    assert in_order(topk.best(score, 32)) == [[-1] * 30 + [7, 9]]


def test_numbers_that_are_no_power_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match="top is 48, not a power of two up to 8192"):
        topk.best(torch.zeros(1, 100), 48)


def test_scores_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="not float32 or bfloat16"):
        topk.best(torch.zeros(1, 100, dtype=torch.float16), 32)


@pytest.mark.parametrize(
    ("queries", "keys", "heads"),
    [
        pytest.param(1, 1, 32, id="one key"),
        pytest.param(7, 9, 32, id="fewer keys than are chosen"),
        pytest.param(35, 35, 32, id="all queries of a sequence"),
        pytest.param(5, 501, 64, id="64 heads"),
    ],
)
def test_the_best_keys_by_stored_scores(queries: int, keys: int, heads: int) -> None:
    q, k = drawn(queries, heads, 16, dtype=torch.float16), drawn(keys, 16, seed=1, dtype=torch.float16)
    weight = drawn(queries, heads, seed=2)
    chosen = indexer_stored.choose_keys(q, k, weight, 32)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float(), weight, 32))


def test_scales_of_keys_in_batches_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_stored, "SCORES_BYTES", 4 * 164 * 2)
    q, k = drawn(5, 32, 16, dtype=torch.float16), drawn(164, 16, seed=1, dtype=torch.float16)
    weight, scale = drawn(5, 32, seed=2), torch.rand(164, generator=torch.Generator().manual_seed(3)) + 0.1
    chosen = indexer_stored.choose_keys(q, k, weight, 32, scale)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float() * scale[:, None], weight, 32))

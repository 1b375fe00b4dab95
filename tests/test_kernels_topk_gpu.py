"""Top-k with its lists in shared memory, which has no interpreter: on a GPU, by the values that PyTorch chooses."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from kernels import topk


def scores(kind: str, rows: int, length: int) -> torch.Tensor:
    score = torch.randn(rows, length, generator=torch.Generator().manual_seed(0))
    return {
        "random": score,
        "rising": torch.arange(float(length)).repeat(rows, 1),
        "equal": torch.ones_like(score),
        "few": score.where(score > 1.5, -torch.inf),
        "tied": (4 * score).round(),
    }[kind]


def are_the_best(score: torch.Tensor, top: int, past: int | None = None) -> None:
    chosen = topk.best(score, top, past).long()
    seen = score.float()
    if past is not None:
        rows, places = (torch.arange(n, device=score.device) for n in score.shape)
        seen = seen.masked_fill(places > past + rows[:, None], -torch.inf)
    wanted = torch.nn.functional.pad(seen, (0, max(0, top - seen.shape[1])), value=-torch.inf).topk(top, dim=1).values
    found = seen.gather(1, chosen.clamp(min=0)).where(chosen >= 0, -torch.inf).sort(1, descending=True).values
    assert found.equal(wanted)
    in_order = chosen.sort(dim=1).values
    assert not ((in_order.diff(dim=1) == 0) & (in_order[:, 1:] >= 0)).any()


@pytest.mark.parametrize("kind", ["random", "rising", "equal", "few", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "length", "top"),
    [
        pytest.param(7, 33, 512, id="fewer than are chosen"),
        pytest.param(600, 4_353, 2048, id="one more than a list holds"),
        pytest.param(600, 9_001, 2048, id="an odd length"),
        pytest.param(5, 131_072, 2048, id="in parts"),
        pytest.param(4, 40_000, 4096, id="more than shared memory holds"),
    ],
)
def test_the_best_of_each_row(rows: int, length: int, top: int, dtype: torch.dtype, kind: str) -> None:
    are_the_best(scores(kind, rows, length).to(dtype).cuda(), top)


@pytest.mark.parametrize("past", [0, 5_000])
def test_rows_that_see_one_score_more_each(past: int) -> None:
    are_the_best(scores("random", 3_000, past + 3_000).cuda(), 2048, past)

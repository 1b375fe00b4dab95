import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn, in_order

from kernels import indexer_stored, topk
from kernels.reference import indexer as plain

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kernels.topk import _best

sides = {"TOP": 2048, "C": 256, "N": 4352, "B": 2048, "BITS": 32, "SHARED": True}
values = sides | {"from_ptr": None, "scratch_ptr": None, "best_ptr": None}
types = {"score_ptr": "*fp32", "out_ptr": "*i32"}
signature = {name: "constexpr" if name in values else types.get(name, "i32") for name in _best.arg_names}
options = {"num_warps": 8, "maxnreg": 64}
kernel = compile(ASTSource(_best, signature, values), target=GPUTarget("cuda", 90, 32), options=options)
print(kernel.asm["ptx"].count("red.shared.add.u32"))
"""
SIDE = 256
"""Scores of a block in these tests, whose lists hold 768."""


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three programs, so that three rows are whole."""
    monkeypatch.setattr(topk, "SIDE", SIDE)
    monkeypatch.setattr(topk, "PROGRAMS_PER_MULTIPROCESSOR", 1)


def shuffled(rows: int, scores: int) -> torch.Tensor:
    return torch.stack([torch.randperm(scores, generator=torch.Generator().manual_seed(i)) for i in range(rows)])


def are_the_best(score: torch.Tensor, top: int) -> None:
    wanted = score.float().sort(dim=1, descending=True).values[:, :top]
    chosen = topk.best(score, top)
    assert (chosen >= 0).sum(dim=1).tolist() == [min(top, score.shape[1])] * len(score)
    there = chosen.long().sort(dim=1, descending=True).values[:, : min(top, score.shape[1])]
    assert all(len(set(row)) == len(row) for row in there.tolist())
    assert score.float().gather(1, there).sort(dim=1, descending=True).values.equal(wanted)


@pytest.mark.parametrize(
    ("rows", "scores", "top"),
    [
        pytest.param(1, 1, 32, id="one score"),
        pytest.param(7, 33, 32, id="one more than are chosen"),
        pytest.param(3, 769, 32, id="one more than a list holds"),
        pytest.param(4, 1_001, 64, id="an odd length"),
        pytest.param(3, 2_000, 256, id="lists that overflow"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_of_each_row(rows: int, scores: int, top: int, dtype: torch.dtype, short_lists: None) -> None:
    are_the_best((shuffled(rows, scores) / 16 - 100).to(dtype), top)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_scores_as_a_gpu_takes_at_once(dtype: torch.dtype) -> None:
    are_the_best((shuffled(1, 9_001) / 16 - 300).to(dtype), 2048)


@pytest.mark.parametrize("scores", [2_100, 2_103])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_are_cut_into_parts(scores: int, dtype: torch.dtype, short_lists: None) -> None:
    assert topk.parts_of_rows(1, scores, 256, 3) == 2
    are_the_best((shuffled(1, scores) / 16 - 60).to(dtype), 256)


def test_a_part_of_a_row_may_have_no_scores(short_lists: None) -> None:
    score = torch.arange(2_100.0).flip(0)[None]
    assert topk.parts_of_rows(1, 2_100, 32, 3) == 2
    assert in_order(topk.best(score, 32, past=9)) == [[-1] * 22 + list(range(10))]


@pytest.mark.parametrize(
    ("rows", "scores", "parts"),
    [
        pytest.param(1, 4_096, 1, id="a list"),
        pytest.param(1, 32_768, 2, id="parts of 16,384"),
        pytest.param(1, 131_072, 4, id="parts of 32,768"),
        pytest.param(64, 131_072, 4, id="64 rows"),
        pytest.param(200, 131_072, 2, id="200 rows"),
        pytest.param(8_192, 131_072, 1, id="rows that fill the GPU"),
    ],
)
def test_parts_of_rows_on_132_multiprocessors(rows: int, scores: int, parts: int) -> None:
    assert topk.parts_of_rows(rows, scores, 2048, 4 * 132) == parts


def test_scores_that_rise_with_every_place_fill_the_list_at_every_block(short_lists: None) -> None:
    score = torch.arange(2_000.0)[None]
    assert in_order(topk.best(score, 256)) == [list(range(1_744, 2_000))]


def test_a_list_is_cut_although_few_of_it_reach_the_bound_of_the_block_that_overflows_it(short_lists: None) -> None:
    score = torch.zeros(8, 256)
    score[:5, :250] = torch.arange(1.0, 6.0)[:, None] + torch.arange(250) / 1000
    score[0, 100:250] += 6.0
    score[7, :256] = 5.5 + torch.arange(256) / 1000
    score = score.view(1, -1)
    assert in_order(topk.best(score, 256)) == in_order(score.topk(256, dim=1).indices)


@pytest.mark.parametrize("rows", [1, 3], ids=["in parts", "whole"])
def test_equal_scores_are_chosen_once_each(rows: int, short_lists: None) -> None:
    for chosen in topk.best(torch.ones(rows, 2_100), 32).tolist():
        assert len(set(chosen)) == 32
        assert all(0 <= place < 2_100 for place in chosen)


def test_all_scores_above_equal_ones_are_chosen(short_lists: None) -> None:
    score = torch.zeros(1, 2_000)
    score[:, 5::200] = 1.0
    for chosen in topk.best(score, 32).tolist():
        assert set(range(5, 2_000, 200)) < set(chosen)
        assert len(set(chosen)) == 32


def test_scores_that_differ_in_their_last_digit_alone(short_lists: None) -> None:
    bits = torch.tensor(1.0).view(torch.int32) + shuffled(1, 1_500).int()
    are_the_best(bits.view(torch.float32), 32)


def test_zeros_of_both_signs_are_equal_or_in_order(short_lists: None) -> None:
    score = torch.zeros(1, 100)
    score[0, ::2] = -0.0
    score[0, 3], score[0, 4] = 1.0, -1.0
    chosen = topk.best(score, 64)[0].tolist()
    assert 3 in chosen
    assert 4 not in chosen


def test_rows_that_see_one_score_more_each(short_lists: None) -> None:
    score = torch.arange(100.0).flip(0).repeat(3, 1)
    assert in_order(topk.best(score, 32, past=1)) == [
        [-1] * 30 + [0, 1],
        [-1] * 29 + [0, 1, 2],
        [-1] * 28 + [0, 1, 2, 3],
    ]


@pytest.mark.parametrize("rows", [1, 3], ids=["in parts", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_minus_infinity_are_no_scores(rows: int, dtype: torch.dtype, short_lists: None) -> None:
    score = torch.full((rows, 2_100), -torch.inf, dtype=dtype)
    score[:, 7], score[:, 1_900] = -3.0, torch.finfo(dtype).min
    score[:, 300] = torch.inf
    assert in_order(topk.best(score, 32)) == [[-1] * 29 + [7, 300, 1_900]] * rows


def test_it_compiles_for_a_gpu_with_17_entries_of_each_of_three_lists_counted_in_shared_memory() -> None:
    alone = os.environ | {"TRITON_INTERPRET": "0"}
    found = subprocess.run([sys.executable, "-c", COMPILED], env=alone, capture_output=True, text=True, check=False)
    assert found.stdout.split() == [str(3 * 17)], found.stderr


def test_numbers_that_are_no_power_of_two_are_refused() -> None:
    with pytest.raises(ValueError, match="top is 48, not a power of two up to 4096"):
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
def test_the_best_keys_by_stored_scores(queries: int, keys: int, heads: int, short_lists: None) -> None:
    q, k = drawn(queries, heads, 16, dtype=torch.float16), drawn(keys, 16, seed=1, dtype=torch.float16)
    weight = drawn(queries, heads, seed=2)
    chosen = indexer_stored.choose_keys(q, k, weight, 32)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float(), weight, 32))


def test_scales_of_keys_in_batches_of_queries(monkeypatch: pytest.MonkeyPatch, short_lists: None) -> None:
    monkeypatch.setattr(indexer_stored, "SCORES_BYTES", 4 * 164 * 2)
    q, k = drawn(5, 32, 16, dtype=torch.float16), drawn(164, 16, seed=1, dtype=torch.float16)
    weight, scale = drawn(5, 32, seed=2), torch.rand(164, generator=torch.Generator().manual_seed(3)) + 0.1
    chosen = indexer_stored.choose_keys(q, k, weight, 32, scale)
    assert in_order(chosen) == in_order(plain.choose_keys(q.float(), k.float() * scale[:, None], weight, 32))

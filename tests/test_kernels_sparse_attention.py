from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distances, drawn

from kernels import sparse_attention_backward as sparse_attention
from kernels import sparse_tiles
from kernels.reference import sparse_attention as plain

LATENT, ROPE, SCALE = 32, 16, 0.2


def chosen(queries: int, keys: int, top: int) -> torch.Tensor:
    order = torch.rand(queries, keys, generator=torch.Generator().manual_seed(3)).argsort(1)[:, :top]
    return torch.nn.functional.pad(order, (0, top - order.shape[1]), value=-1).int()


@pytest.mark.parametrize(
    ("queries", "heads", "keys", "top"),
    [
        pytest.param(3, 4, 300, 128, id="two steps of keys"),
        pytest.param(2, 6, 20, 64, id="six heads, fewer keys than places"),
        pytest.param(2, 96, 40, 32, id="64 and 32 heads"),
        pytest.param(2, 130, 40, 32, id="two programs of heads"),
    ],
)
def test_attention_to_chosen_keys_and_its_gradients(queries: int, heads: int, keys: int, top: int) -> None:
    index = chosen(queries, keys, top)
    inputs = [drawn(queries, heads, LATENT + ROPE), drawn(keys, LATENT + ROPE, seed=1)]
    fused, small = (
        partial(f.sparse_attention, index_TJ=index, latent=LATENT, scale=SCALE) for f in (sparse_attention, plain)
    )
    assert max(distances(fused, small, inputs)) < 1e-5


def test_scores_that_exceed_those_of_the_first_keys_by_more_than_a_power_of_two_holds() -> None:
    kv = drawn(256, LATENT + ROPE, seed=1)
    kv[130], kv[131] = 300.0, 299.9
    inputs = [drawn(2, 4, LATENT + ROPE).abs(), kv]
    index = torch.arange(256).int().repeat(2, 1)
    fused, small = (
        partial(f.sparse_attention, index_TJ=index, latent=LATENT, scale=SCALE) for f in (sparse_attention, plain)
    )
    assert distances(fused, small, inputs)[0] < 1e-5


def test_queries_of_more_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    q, kv, index = drawn(5, 4, LATENT + ROPE), drawn(40, LATENT + ROPE, seed=1), chosen(5, 40, 32)
    at_once = sparse_attention.sparse_attention(q, kv, index, LATENT, SCALE)
    monkeypatch.setattr(sparse_tiles, "WORKSPACE_BYTES", 2 * 32 * sparse_tiles.parts(4).width * 4)
    assert sparse_tiles.batch(5, sparse_tiles.parts(4), 32, 1, 4) == 2
    assert torch.equal(sparse_attention.sparse_attention(q, kv, index, LATENT, SCALE), at_once)


@pytest.mark.parametrize(
    ("heads", "programs", "x", "y"),
    [(96, 1, 64, 32), (128, 1, 64, 64), (64, 1, 32, 32), (4, 1, 16, 16), (192, 2, 64, 64)],
)
def test_heads_in_two_parts(heads: int, programs: int, x: int, y: int) -> None:
    assert sparse_tiles.parts(heads) == sparse_tiles.Parts(programs, x, y)


def test_all_keys_chosen_is_ordinary_attention() -> None:
    q, kv = drawn(5, 4, LATENT + ROPE), drawn(16, LATENT + ROPE, seed=1)
    index = torch.arange(16).int().repeat(5, 1)
    found = sparse_attention.sparse_attention(q, kv, index, LATENT, SCALE)
    wanted = ((q @ kv.T) * SCALE).softmax(-1) @ kv[:, :LATENT]
    assert torch.allclose(found, wanted, atol=1e-5)


def test_packed_sequences_attend_each_to_its_own_keys() -> None:
    lengths = (5, 1, 11)
    q, kv = drawn(17, 4, LATENT + ROPE), drawn(17, LATENT + ROPE, seed=1)
    alone, index, at = [], [], 0
    for length in lengths:
        own, last = torch.arange(16), torch.arange(length)[:, None]
        index.append(torch.where(own <= last, own + at, -1))
        mine = slice(at, at + length)
        score = (q[mine] @ kv[mine].T * SCALE).masked_fill(own[:length] > last[:, :, None], -torch.inf)
        alone.append(score.softmax(-1) @ kv[mine, :LATENT])
        at += length
    found = sparse_attention.sparse_attention(q, kv, torch.cat(index).int(), LATENT, SCALE)
    assert torch.allclose(found, torch.cat(alone), atol=1e-5)


def test_one_key_is_handed_through_whatever_the_score() -> None:
    q, kv = drawn(1, 1, LATENT + ROPE).requires_grad_(), drawn(1, LATENT + ROPE, seed=1)
    found = sparse_attention.sparse_attention(q, kv, chosen(1, 1, 16), LATENT, SCALE)
    assert torch.equal(found[0, 0], kv[0, :LATENT])
    found.sum().backward()
    assert q.grad.abs().max() < 1e-5


def test_a_query_without_keys_gets_zeros() -> None:
    q, kv = drawn(1, 4, LATENT + ROPE), drawn(3, LATENT + ROPE, seed=1)
    found = sparse_attention.sparse_attention(q, kv, torch.full((1, 16), -1).int(), LATENT, SCALE)
    assert found.abs().max() == 0.0


def test_sides_that_are_no_powers_of_two_are_all_named() -> None:
    q, kv = drawn(1, 4, 44), drawn(3, 44, seed=1)
    with pytest.raises(ValueError, match="rope is 12; chosen keys is 12"):
        sparse_attention.sparse_attention(q, kv, torch.zeros(1, 12).int(), 32, SCALE)

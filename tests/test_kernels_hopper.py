"""The kernels of sparse attention that run on Hopper GPUs alone, whose language has no interpreter, against fp32."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from kernel_checks import distances, drawn

from kernels import sparse_attention_backward as sparse_attention
from kernels import sparse_tiles
from kernels.reference import sparse_attention as plain

LATENT, ROPE, SCALE = 512, 64, 192**-0.5


def chosen(queries: int, keys: int, top: int) -> torch.Tensor:
    index = torch.randint(keys, (queries, top), generator=torch.Generator().manual_seed(3)).int()
    index[::3, top // 2 :] = -1
    return index.cuda()


def both(queries: int, heads: int, keys: int, top: int, factor: float = 1.0) -> list[float]:
    index = chosen(queries, keys, top)
    inputs = [
        (drawn(queries, heads, LATENT + ROPE) * factor).cuda().bfloat16(),
        drawn(keys, LATENT + ROPE, seed=1).cuda().bfloat16(),
    ]
    fused, small = (
        partial(f.sparse_attention, index_TJ=index, latent=LATENT, scale=SCALE) for f in (sparse_attention, plain)
    )
    return distances(fused, small, inputs)


@pytest.mark.parametrize(
    ("queries", "heads", "keys", "top"),
    [
        pytest.param(37, 96, 3000, 256, id="96 heads"),
        pytest.param(300, 96, 8192, 2048, id="more queries than multiprocessors"),
        pytest.param(20, 90, 300, 128, id="90 heads, two tiles of keys"),
        pytest.param(50, 64, 3000, 512, id="64 heads"),
        pytest.param(50, 128, 3000, 512, id="128 heads"),
        pytest.param(20, 100, 300, 256, id="100 heads of 128"),
        pytest.param(20, 6, 300, 256, id="6 heads of 32"),
    ],
)
def test_attention_to_chosen_keys_and_its_gradients(queries: int, heads: int, keys: int, top: int) -> None:
    rows = torch.empty(0, LATENT + ROPE, device="cuda", dtype=torch.bfloat16)
    assert sparse_tiles.on_hopper(rows, LATENT, top)
    assert sparse_tiles.parts_on(rows, heads, LATENT, top).programs == 1
    assert max(both(queries, heads, keys, top)) < 4e-3


@pytest.mark.parametrize("heads", [64, 96, 128])
def test_gradients_in_batches(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_tiles, "WORKSPACE_BYTES", 2**24)
    assert max(both(300, heads, 3000, 256)) < 4e-3


@pytest.mark.parametrize(("heads", "top"), [(80, 16), (80, 32), (96, 64), (6, 64), (128, 64)])
def test_fewer_than_128_keys_take_the_portable_kernels(heads: int, top: int) -> None:
    assert max(both(20, heads, 300, top)) < 4e-3


def test_gradients_of_more_than_128_heads_take_the_portable_kernels() -> None:
    assert max(both(20, 160, 300, 256)) < 4e-3


@pytest.mark.parametrize("heads", [64, 96])
def test_scores_that_exceed_those_of_the_first_keys_by_more_than_a_power_of_two_holds(heads: int) -> None:
    forward, *_ = both(16, heads, 3000, 2048, factor=90.0)
    assert forward < 4e-3


def test_fewer_keys_than_a_product_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="chosen keys is 8, a GPU takes 16 at least"):
        both(2, 96, 300, 8)


def test_a_query_without_keys_gets_zeros() -> None:
    q, kv = (drawn(*shape).cuda().bfloat16() for shape in ((3, 96, LATENT + ROPE), (5, LATENT + ROPE)))
    found = sparse_attention.sparse_attention(q, kv, torch.full((3, 128), -1).int().cuda(), LATENT, SCALE)
    assert found.abs().max() == 0.0

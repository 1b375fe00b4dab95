import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import drawn

from kernels import decode_attention
from kernels.reference import decode_attention as plain


def pages(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages of each sequence, last ones first, and lengths."""
    most = -(-max(lengths) // decode_attention.PAGE)
    table = torch.arange(len(lengths) * most - 1, -1, -1, dtype=torch.int32).reshape(len(lengths), most)
    return table, torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize(
    ("lengths", "heads", "groups"),
    [
        pytest.param([1], 4, 1, id="a token alone"),
        pytest.param([64, 1, 200], 8, 2, id="whole pages, one token, many parts of unequal sequences"),
        pytest.param([70], 3, 3, id="a key head for each query head"),
        pytest.param([130, 129], 40, 2, id="more heads than a block has rows"),
    ],
)
def test_heads_that_share_keys(lengths: list[int], heads: int, groups: int) -> None:
    table, length = pages(lengths)
    cache = [drawn(table.numel(), decode_attention.PAGE, groups, 16, seed=seed, dtype=torch.float16) for seed in (1, 2)]
    q = drawn(len(lengths), heads, 16, dtype=torch.float16)
    found = decode_attention.grouped(q, *cache, table, length, 0.25)
    wanted = plain.attend(q.float(), *(x.float() for x in cache), table, length, 0.25)
    torch.testing.assert_close(found.float(), wanted, atol=3e-3, rtol=0)


@pytest.mark.parametrize(("lengths", "heads"), [([1, 150], 5), ([300], 70)])
def test_latents_are_key_and_value(lengths: list[int], heads: int) -> None:
    table, length = pages(lengths)
    latent = drawn(table.numel(), decode_attention.PAGE, 48, dtype=torch.float16)
    q = drawn(len(lengths), heads, 48, seed=1, dtype=torch.float16)
    found = decode_attention.latent(q, latent, table, length, 0.15, 32)
    key = latent.float()[:, :, None]
    wanted = plain.attend(q.float(), key, key[..., :32], table, length, 0.15)
    torch.testing.assert_close(found.float(), wanted, atol=3e-3, rtol=0)


def test_few_long_sequences_are_cut_into_more_parts() -> None:
    assert decode_attention.parts_of(programs=8, pages=512, units=132) == 64
    assert decode_attention.parts_of(programs=1024, pages=512, units=132) == 1
    assert decode_attention.parts_of(programs=8, pages=3, units=132) == 3

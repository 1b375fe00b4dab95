"""Older flash attentions where a part has faster ones: their times, what rules them out, and that memory stays."""

from pathlib import Path

import pytest

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

H100 = load_accelerator("h100-sxm", Path())
H100_500W = load_accelerator("h100-sxm-96g-hbm2e", Path())
FLASH2 = "training.attention=flash2"
FLASH_TRITON = "training.attention=flash_triton"


def problems(scenario: str, *overrides: str) -> list[str]:
    with pytest.raises(Refused) as refused:
        assemble_job(*read_scenario(scenario, overrides))
    return list(refused.value.messages)


@pytest.mark.parametrize(("length", "measured_flops_per_s"), [(1024, 260e12), (4096, 319e12), (16384, 335e12)])
def test_forward_of_16_heads_of_128_over_16384_tokens(length, measured_flops_per_s):
    flops = 4 * 128 * 16 * (16384 // length) * length**2 / 2
    traffic = 4 * 2 * 16384 * 16 * 128
    seconds = float(kernel_time(H100, "flash2", flops, traffic, (16, 128, length)).seconds)
    assert flops / seconds == pytest.approx(measured_flops_per_s, rel=0.01)


def test_under_500_w_attention_keeps_what_products_keep():
    work = {"flops": 1e12, "bytes": 1.0, "shape": (32, 128, 8192)}
    limited_s, free_s = (float(kernel_time(part, "flash2", **work).seconds) for part in (H100_500W, H100))
    assert free_s / limited_s == pytest.approx(0.573 / 0.794, rel=0.005)


def layers_s(layers: int, width: int, length: int, *, recomputed: bool) -> float:
    """Attention of a token of MPT over *length* tokens, forward (twice if *recomputed*) and backward."""
    flops, shape = 4 * layers * width * length**2 / 2, (width // 128, 128, length)
    forward = float(kernel_time(H100, "flash_triton", flops, 1.0, shape).seconds)
    backward = float(kernel_time(H100, "flash_triton", 2.5 * flops, 1.0, shape, backward=True).seconds)
    return (forward * (2 if recomputed else 1) + backward) / length


@pytest.mark.parametrize(
    ("layers", "width", "recomputed", "tokens_per_s"),
    [(24, 2048, False, {8192: 29157, 32768: 12025}), (32, 2560, True, {32768: 5873, 65536: 3262})],
)
def test_what_longer_sequences_cost_models_of_1_and_3_billion_with_the_triton_kernel(
    layers, width, recomputed, tokens_per_s
):
    short, long = tokens_per_s
    measured_s = 1 / tokens_per_s[long] - 1 / tokens_per_s[short]
    priced_s = layers_s(layers, width, long, recomputed=recomputed) - layers_s(
        layers, width, short, recomputed=recomputed
    )
    assert priced_s == pytest.approx(measured_s, rel=0.01)


def test_they_take_longer_and_keep_the_same():
    flash, flash2, triton = (
        forecast(*read_scenario("llama3-70b-fsdp-64xh100", o)).summary for o in ((), (FLASH2,), (FLASH_TRITON,))
    )
    assert flash2["step_time_s"]["p50"] > 1.02 * flash["step_time_s"]["p50"]
    assert triton["step_time_s"]["p50"] > 1.02 * flash2["step_time_s"]["p50"]
    assert flash["memory"] == flash2["memory"] == triton["memory"]


def test_parts_without_timings_and_mixers_of_unlike_heads_are_refused():
    assert problems("kimi-k3-lora-128xh200", FLASH2) == [
        "training.attention: flash2 is known of grouped attention, kimi_k31 has kimi delta attention and latent "
        "attention; allowed: flash"
    ]
    assert problems("llama3-70b-fsdp-64xh100", FLASH2, "cluster.node=mi300x-oam") == [
        "training.attention: flash2 was not timed on mi300x, nor on a part that stands in for it; allowed: flash"
    ]
    assert problems("llama3-70b-fsdp-64xh100", FLASH_TRITON, "cluster.node=hgx-a100") == [
        "training.attention: flash_triton was not timed on a100-80g-sxm, nor on a part that stands in for it; "
        "allowed: flash"
    ]

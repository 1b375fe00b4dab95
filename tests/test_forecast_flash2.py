"""FlashAttention-2 where a part has faster kernels: its times, what it is refused for, and that memory stays."""

from pathlib import Path

import pytest

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

H100 = load_accelerator("h100-sxm", Path())
FLASH2 = "training.attention=flash2"


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


def test_it_takes_longer_and_keeps_the_same():
    flash, flash2 = (forecast(*read_scenario("llama3-70b-fsdp-64xh100", o)).summary for o in ((), (FLASH2,)))
    assert flash2["step_time_s"]["p50"] > 1.02 * flash["step_time_s"]["p50"]
    assert flash2["memory"] == flash["memory"]


def test_parts_without_timings_and_mixers_of_unlike_heads_are_refused():
    assert problems("kimi-k3-lora-128xh200", FLASH2) == [
        "training.attention: flash2 is known of grouped attention, kimi_k31 has kimi delta attention and latent "
        "attention; allowed: flash"
    ]
    assert problems("llama3-70b-fsdp-64xh100", FLASH2, "cluster.node=mi300x-oam") == [
        "training.attention: flash2 was not timed on mi300x, nor on a part that stands in for it; allowed: flash"
    ]

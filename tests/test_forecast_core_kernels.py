"""What a choice of core kernels is refused for, and that it moves the forecast."""

import pytest

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

SHORT = (
    "training.lora.targets=[attention]",
    "model=kimi-linear-48b-a3b",
    "parallel={dp_shard: 8, ep: 8}",
    "cluster.accelerators=8",
    "training.global_batch_sequences=8",
    "training.sequence_length=1024",
)
WAYS = ("fused", "partly_fused", "small_operators")


def problems(scenario: str, *overrides: str) -> list[str]:
    with pytest.raises(Refused) as refused:
        assemble_job(*read_scenario(scenario, overrides))
    return list(refused.value.messages)


def test_models_without_such_a_core_are_told() -> None:
    assert problems("llama3-8b-fsdp2-2xh200", "training.core_kernels=fused") == [
        "training.core_kernels: found fused, but llama has neither Kimi delta attention nor sparse latent attention; "
        "leave it out"
    ]


def test_small_operators_split_no_sequence() -> None:
    found = problems(
        "kimi-k3-lora-128xh200", "training.core_kernels=small_operators", "parallel.cp=2", "parallel.dp_shard=64"
    )
    assert found == ["parallel.cp: found 2, but training.core_kernels: small_operators splits no sequence; allowed: 1"]


def test_each_way_is_slower_and_only_the_small_operators_need_much_memory() -> None:
    asked = [(*SHORT, f"training.core_kernels={way}") for way in WAYS]
    found = [forecast(*read_scenario("kimi-k3-lora-128xh200", overrides)).summary for overrides in asked]
    times = [summary["step_time_s"]["p50"] for summary in found]
    assert times == sorted(set(times))
    peaks = [summary["memory"]["hbm"]["peak_bytes"] for summary in found]
    # The loss has the peak until a layer keeps 32 KiB thrice, and needs as much again, for each token and its 32 heads.
    assert peaks[0] == peaks[1] < peaks[2]
    assert peaks[2] > 6 * 32 * 1024 * 32 * 1024


def test_absent_it_follows_the_execution() -> None:
    def step(*overrides: str) -> float:
        return forecast(*read_scenario("kimi-k3-lora-128xh200", (*SHORT, *overrides))).summary["step_time_s"]["p50"]

    assert step() == step("training.core_kernels=fused")
    assert step("training.execution=compiled") == step(
        "training.execution=compiled", "training.core_kernels=partly_fused"
    )

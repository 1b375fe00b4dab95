"""What attention over scores in memory, and dropout, are refused for, and that they move the forecast."""

import pytest

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.forecast.reading import read_scenario

KNOWN = "training.attention: unfused is known of plainly causal grouped attention"


def problems(scenario: str, *overrides: str) -> list[str]:
    with pytest.raises(Refused) as refused:
        assemble_job(*read_scenario(scenario, overrides))
    return list(refused.value.messages)


def test_mixers_without_such_a_path_are_told():
    found = problems("kimi-k3-lora-128xh200", "training.attention=unfused", "training.execution=fused")
    assert found == [f"{KNOWN}, kimi_k31 has kimi delta attention and latent attention; allowed: flash"]


def test_other_executions_and_split_sequences_are_refused_together():
    found = problems(
        "llama3-70b-fsdp-64xh100",
        "training.attention=unfused",
        "training.execution=eager",
        "parallel.cp=2",
        "parallel.dp_shard=32",
    )
    assert found == [
        "training.execution: found eager; attention: unfused is part of fused, allowed: that",
        "parallel.cp: found 2, but attention: unfused splits no sequence; allowed: 1",
    ]


def test_scores_and_dropout_take_time_and_memory():
    settings = ((), ("training.attention=unfused",), ("training.attention=unfused", "training.dropout=true"))
    forecasts = [forecast(*read_scenario("llama3-70b-fsdp-64xh100", overrides)).summary for overrides in settings]
    times = [summary["step_time_s"]["p50"] for summary in forecasts]
    assert times == sorted(set(times))

"""What a scenario may say of recomputation, and what is refused."""

import pytest
from small_jobs import Small

from simulator.documents import InvalidDocument
from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused
from simulator.forecast.forecast import forecast
from simulator.model.recompute import NOTHING, WHOLE, Recompute


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("none", NOTHING),
        ("full", WHOLE),
        ("{every: 2}", Recompute(every=2)),
        ("{keep: alternate_matmuls}", Recompute(keep="alternate_matmuls")),
        ("{modules: [core_attn, mlp]}", Recompute(modules=("core_attn", "mlp"))),
    ],
)
def test_the_job_has_what_the_scenario_says(small: Small, value: str, expected: Recompute) -> None:
    assert assemble_job(*small("dense", f"training.recompute={value}")).recompute == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}", "training.recompute: found none of them; allowed: one of every, keep and modules"),
        (
            "{every: 2, keep: matmuls}",
            "training.recompute.keep: found every and keep; allowed: one of every, keep and modules",
        ),
        (
            "{modules: [mlp, mlp]}",
            "training.recompute.modules: found mlp more than once; allowed: once",
        ),
        ("{every: 1}", "training.recompute.every: found 1, expected an integer from 2 to 10,000 or null"),
    ],
)
def test_what_a_scenario_alone_shows_to_be_wrong(small: Small, value: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        small("dense", f"training.recompute={value}")
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        (
            "dense",
            ("training.recompute={every: 3}", "parallel={pp: 2, dp_shard: 8}"),
            "training.recompute.every: found 3, but a stage of 4 layers / pp(2) has 2 at most, so that none would be "
            "recomputed; allowed: up to 2",
        ),
        (
            "dense",
            ("training.recompute={keep: matmuls}", "training.zero=1"),
            "training.recompute.keep: is PyTorch's selective checkpoint, and zero: 1 is Megatron-LM's step, whose "
            "checkpoint keeps no results; allowed: zero: 3, or modules",
        ),
        (
            "dense",
            ("training.recompute={modules: [layernorm]}",),
            "training.recompute.modules: llama has no layernorm, which takes a norm of its own: Transformer Engine has "
            "one before latent attention and before experts alone; it has core_attn, mlp",
        ),
        (
            "mixture",
            ("training.recompute={modules: [shared_experts]}",),
            "training.recompute.modules: qwen3_moe has no shared_experts, which takes shared experts; it has "
            "core_attn, layernorm, moe, moe_act",
        ),
        (
            "dense",
            ("training.recompute={modules: [mlp]}", "training.execution=eager"),
            "training.recompute.modules: Megatron-LM's need execution: fused, found eager; allowed: fused, or keep",
        ),
        (
            "latent",
            ("training.recompute={modules: [moe, moe_act, shared_experts]}",),
            "training.recompute.modules: moe_act and shared_experts run again with moe, which they are part of; "
            "allowed: one or the other",
        ),
        (
            "latent",
            ("training.recompute={modules: [mla_up_proj]}", "parallel={cp: 2, dp_shard: 8}"),
            "training.recompute.modules: core_attn and mla_up_proj are known with cp(2) where ranks keep keys and "
            "values of their own tokens, found context_parallel: all_gather; allowed: ring, or cp: 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    small: Small, kind: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Refused) as caught:
        assemble_job(*small(kind, *overrides))
    assert caught.value.messages == (message,)


def test_less_is_kept_and_more_computed_from_one_way_to_the_next(small: Small) -> None:
    ways = ("none", "{keep: matmuls}", "{keep: alternate_matmuls}", "full")
    found = [
        forecast(*small("dense", f"training.recompute={way}", "training.execution=compiled")).summary for way in ways
    ]
    times = [summary["step_time_s"]["p50"] for summary in found]
    peaks = [summary["memory"]["hbm"]["peak_bytes"] for summary in found]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)

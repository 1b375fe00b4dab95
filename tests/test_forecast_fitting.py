import re

import pytest
from small_jobs import Small

from simulator.forecast.fitting import MOST_SUGGESTIONS, _settings, changed, fit, memory_of

# 128 sequences of 8192 tokens at once are more activations than an H200 has memory for.
TOO_LARGE = (
    "training.sequence_length=8192", "training.micro_batch_sequences=128", "training.global_batch_sequences=2048",
)  # fmt: skip


def overrides(change: str) -> list[str]:
    """A suggested change as separate overrides."""
    return re.split(r" (?=[a-z_.]+=)", change)


def test_what_fits_needs_no_change(small: Small) -> None:
    found = fit(*small("dense"))
    assert (found["fits"], found["verdict"], found["suggestions"]) == (True, "fits", [])
    assert found["memory"] == memory_of(*small("dense")).summary()


@pytest.fixture(scope="module")
def too_large(small: Small) -> dict[str, object]:
    return fit(*small("dense", *TOO_LARGE))


def test_states_on_drives_are_among_what_is_tried(small: Small) -> None:
    scenario, folder = small("dense")
    drives = {"training.offload.optimizer": "nvme", "training.offload.nvme.pipeline_read": True}
    assert any(drives.items() <= change.items() for change in _settings(scenario, folder))
    assert not any(drives.items() <= change.items() for change in _settings(*small("dense", "training.zero=1")))


def test_every_suggestion_fits_as_it_is_written(small: Small, too_large: dict[str, object]) -> None:
    assert (too_large["fits"], too_large["verdict"]) == (False, "does not fit")
    suggestions = too_large["suggestions"]
    assert isinstance(suggestions, list)
    assert 0 < len(suggestions) <= MOST_SUGGESTIONS
    for suggestion in suggestions:
        memory = memory_of(*small("dense", *TOO_LARGE, *overrides(suggestion["change"])))
        assert memory.verdict != "does not fit"
        assert memory.summary()["hbm"]["peak_bytes"] == suggestion["peak_bytes"]


def test_the_cheapest_token_comes_first(too_large: dict[str, object]) -> None:
    suggestions = too_large["suggestions"]
    assert isinstance(suggestions, list)
    prices = [suggestion["accelerator_s_per_1m_tokens"] for suggestion in suggestions]
    assert prices == sorted(prices)
    changes = [suggestion["change"] for suggestion in suggestions]
    assert "training.recompute=full" in changes
    assert "training.micro_batch_sequences=1" in changes


def test_a_change_leaves_everything_else_as_it_was(small: Small) -> None:
    scenario, _ = small("dense")
    other = changed(scenario, {"training.recompute": "full", "parallel.dp_shard": 8, "training.fsdp.prefetch": 2})
    assert (other.training.recompute, other.parallel.dp_shard, other.training.fsdp.prefetch) == ("full", 8, 2)
    assert changed(
        other, {"training.recompute": "none", "parallel.dp_shard": 16, "training.fsdp.prefetch": 1}
    ).model_dump() == scenario.model_dump()  # fmt: skip


def test_memory_needs_no_more_micro_batches_than_are_held_at_once(small: Small) -> None:
    few, many = (f"training.global_batch_sequences={16 * count}" for count in (2, 4000))
    assert memory_of(*small("dense", many)).summary() == memory_of(*small("dense", few)).summary()


@pytest.mark.parametrize(
    ("kind", "zero", "suggested"),
    [
        ("dense", 3, "training.recompute={keep: alternate_matmuls}"),
        ("dense", 1, "training.recompute={modules: [mlp]}"),
        ("latent", 1, "training.recompute={modules: [layernorm, mla_up_proj, mlp, moe_act]}"),
    ],
)
def test_less_than_full_recomputation_is_tried_as_well(small: Small, kind: str, zero: int, suggested: str) -> None:
    # So many sequences that all activations do not fit, and those left by a selective recomputation do.
    size = {"dense": 112, "latent": 128}[kind]
    batch = f"training={{sequence_length: 8192, micro_batch_sequences: {size}, global_batch_sequences: {16 * size}}}"
    found = fit(*small(kind, batch, f"training.zero={zero}", "training.loss=cut"))
    assert not found["fits"]
    assert suggested in [suggestion["change"] for suggestion in found["suggestions"]]


def test_evening_out_images_is_suggested_where_that_suffices(small: Small) -> None:
    # Three ranks of four see no image, the fourth eight in each of its 64 sequences.
    counts = [0] * 3 * 64 + [8] * 64
    asked = f"{{height: 1024, width: 1024, per_sequence: {counts}, frozen: [projector]}}"
    large = "training.sequence_length=8192", "training.micro_batch_sequences=64", "training.global_batch_sequences=1024"
    found = fit(*small("seeing", *large, f"training.images={asked}"))
    assert not found["fits"]
    suggested = [suggestion["change"] for suggestion in found["suggestions"]]
    assert "training.images.even=true" in suggested
    assert all("training.images.frozen=[]" in change for change in suggested if "training.lora" in change)


def test_what_nothing_shards_is_advised_to_be_sharded(small: Small) -> None:
    # 8 billion parameters with buckets, gradients and two moments, all in bf16 and whole, come to 80 GB.
    whole = (
        "training.zero=0",
        "parallel={dp_replicate: 16}",
        "training.optimizer={state_dtype: bf16, master_weights: false}",
    )
    longer = "training.sequence_length=8192"
    found = fit(*small("dense", "model=llama-3.1-8b", "cluster.node=hgx-h100", longer, *whole))
    assert found["verdict"] == "does not fit"
    sharded = "training.zero=3 parallel.dp_replicate=1 parallel.dp_shard=16"
    assert sharded in [suggestion["change"] for suggestion in found["suggestions"]]

"""Counts of the shipped models, exact."""

from pathlib import Path

import pytest

from simulator.model.census import Census, census
from simulator.model.config import read_architecture

MODELS = Path(__file__).parents[1] / "scenarios" / "models"

# Total; active without the input embedding. Each total was worked out block by block from published dims; those of
# Kimi-K3 (all tensors of its checkpoint), Llama-3.1-8B, Mixtral-8x7B and DeepSeek-V3 (671B without its MTP layer) are
# the published ones to the last digit given.
COUNTS = {
    "deepseek-v3": (671_026_419_200, 36_625_618_432),
    "deepseek-v3.2": (671_877_944_064, 37_477_143_296),
    "kimi-k2": (1_026_408_232_448, 31_687_095_808),
    "kimi-10t": (10_221_298_494_976, 136_681_729_536),
    "kimi-k3": (2_779_931_837_184, 104_189_614_848),
    "kimi-k3.1": (2_780_110_363_392, 104_368_141_056),
    "kimi-linear-48b-a3b": (49_122_681_728, 3_106_972_544),
    "llama-3.1-405b": (405_853_388_800, 403_752_042_496),
    "llama-3.1-70b": (70_553_706_496, 69_503_033_344),
    "llama-3.1-8b": (8_030_261_248, 7_504_924_672),
    "mixtral-8x7b": (46_702_792_704, 12_748_853_248),
    "qwen3-235b-a22b": (235_093_634_560, 21_568_433_664),
    "qwen3-vl-8b": (8_767_123_696, 7_568_405_504),
    "qwen3-30b-a3b": (30_532_122_624, 3_041_867_776),
}


def count(name: str) -> Census:
    return census(read_architecture(MODELS / f"{name}.json"))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_shipped_models_are_exact(name: str) -> None:
    counted = count(name)
    assert (counted.total_parameters, counted.active_parameters) == COUNTS[name]


def test_every_shipped_model_is_counted_here_and_wholly_understood() -> None:
    assert {path.stem for path in MODELS.glob("*.json")} == set(COUNTS)
    for path in MODELS.glob("*.json"):
        assert read_architecture(path).unknown_fields == ()


def test_kimi_k3_rows_follow_the_checkpoint() -> None:
    rows = {row.name: (row.parameters, row.layers) for row in count("kimi-k3").rows}
    expert = 3 * 3584 * 3072
    assert rows == {
        "embedding": (163840 * 7168, 0),
        "kimi delta attention": (69 * 443_740_416, 69),
        "latent attention": (24 * 232_196_096, 24),
        "dense feed forward": (3 * 7168 * 33792, 1),
        "router": (92 * (896 * 7168 + 896), 92),
        "latent projections": (92 * (2 * 7168 * 3584 + 3584), 92),
        "shared experts": (92 * 3 * 7168 * 6144, 92),
        "routed experts": (92 * 896 * expert, 92),
        "norms": ((2 * 93 + 1) * 7168, 93),
        "residual mix": ((4 * 93 + 2) * 7168, 93),
        "head": (163840 * 7168, 0),
        "vision tower": (401_214_464, 0),
        "projector": (46_144_512, 0),
    }


def test_kimi_k3_takes_5_56_terabytes_in_bf16() -> None:
    assert count("kimi-k3").bytes_bf16 == 2 * 2_779_931_837_184


def test_kimi_k31_is_k3_with_24_indexers() -> None:
    indexer = 1536 * 4096 + 7168 * 128 + 2 * 128 + 7168 * 32
    assert indexer == 7_438_592
    assert count("kimi-k3.1").total_parameters - count("kimi-k3").total_parameters == 24 * indexer


def test_rows_add_up_to_the_total() -> None:
    for name in COUNTS:
        counted = count(name)
        assert sum(row.parameters for row in counted.rows if row.counted) == counted.total_parameters


def test_prediction_module_of_deepseek_v3_stands_apart() -> None:
    """One layer of latent attention and experts, a projection from two widths to one, and three norms."""
    rows = {row.name: row for row in count("deepseek-v3").rows}
    attention = 187_107_328
    experts = 256 * 3 * 7168 * 2048 + 256 * 7168 + 256 + 3 * 7168 * 2048
    assert rows["mtp"].parameters == attention + experts + 2 * 7168 + 2 * 7168 * 7168 + 3 * 7168
    assert not rows["mtp"].counted


def test_past_of_a_latent_attention_model_grows_by_one_latent_a_layer() -> None:
    counted = count("deepseek-v3.2")
    assert counted.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert counted.index_bytes_per_token == 61 * (128 + 4)
    assert counted.state_bytes_per_sequence == 0


def test_past_of_kimi_k31_is_mostly_state() -> None:
    counted = count("kimi-k3.1")
    assert counted.kv_bytes_per_token == 24 * 1152
    assert counted.index_bytes_per_token == 24 * 132
    assert counted.state_bytes_per_sequence == 69 * (96 * 128 * 128 * 4 + 3 * 12288 * 3 * 2)


def test_past_of_grouped_attention_grows_by_key_and_value() -> None:
    assert count("llama-3.1-8b").kv_bytes_per_token == 32 * 2 * 8 * 128 * 2

"""Counts of original `config.json` files, where a checkout has them beside it (../shared)."""

import json
import runpy
from pathlib import Path

import pytest

from simulator.model.census import census
from simulator.model.config import ConfigError, read_architecture

ROOT = Path(__file__).parents[1]
ORIGINALS = ROOT.parent / "shared" / "facts" / "hf_configs"
parameter_page = runpy.run_path(str(ROOT / "tools" / "parameters.py"))["page"]

# Total and active parameters derived from each file. Published totals are in data/published_parameters.csv, but where
# a name rounds too much to say: Kimi-K2 and K2.5 ("1 T") count to 1026 B, Nemotron-3-Nano ("30B") to 31.6 B.
COUNTS = {
    "MiniMaxAI__MiniMax-M2.5": (228_689_764_864, 10_415_956_480),
    "Qwen__Qwen3-0.6B": (596_049_920, 596_049_920),
    "Qwen__Qwen3-235B-A22B": (235_093_634_560, 21_568_433_664),
    "Qwen__Qwen3-235B-A22B-FP8": (235_093_634_560, 21_568_433_664),
    "Qwen__Qwen3-30B-A3B": (30_532_122_624, 3_041_867_776),
    "Qwen__Qwen3-32B": (32_762_123_264, 31_984_210_944),
    "Qwen__Qwen3-8B": (8_190_735_360, 7_568_405_504),
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, 34_541_270_528),
    "Qwen__Qwen3-VL-235B-A22B-Instruct": (235_670_022_896, 21_568_433_664),
    "Qwen__Qwen3-VL-8B-Instruct": (8_767_123_696, 7_568_405_504),
    "Qwen__Qwen3.5-122B-A10B": (122_562_817_776, 9_008_449_536),
    "deepseek-ai__DeepSeek-V3": (671_026_419_200, 36_625_618_432),
    "deepseek-ai__DeepSeek-V3.2": (671_877_944_064, 37_477_143_296),
    "deepseek-ai__DeepSeek-V4-Flash": (284_332_240_471, 13_270_101_591),
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": (400_711_848_960, 16_150_205_440),
    "meta-llama__Meta-Llama-3.1-405B": (405_853_388_800, 403_752_042_496),
    "meta-llama__Meta-Llama-3.1-70B": (70_553_706_496, 69_503_033_344),
    "meta-llama__Meta-Llama-3.1-8B": (8_030_261_248, 7_504_924_672),
    "mistralai__Mixtral-8x22B-v0.1": (140_620_634_112, 38_955_423_744),
    "mistralai__Mixtral-8x7B-v0.1": (46_702_792_704, 12_748_853_248),
    "moonshotai__Kimi-K2-Instruct": (1_026_408_232_448, 31_687_095_808),
    "moonshotai__Kimi-K2.5": (1_026_879_376_368, 31_687_095_808),
    "moonshotai__Kimi-K3": (2_779_931_837_184, 104_189_614_848),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, 3_227_754_816),
    "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (120_668_707_840, 12_233_366_528),
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (549_308_993_536, 54_985_101_312),
    "openai__gpt-oss-120b": (116_829_156_672, 5_132_849_472),
    "openai__gpt-oss-20b": (20_914_757_184, 3_608_307_264),
    "zai-org__GLM-5": (743_911_218_432, 40_833_146_112),
}
# Files that the generic reader understands in all that counts, once their model_type is one that nobody knows.
COMMON_KIND = (
    "MiniMaxAI__MiniMax-M2.5",
    "Qwen__Qwen3-235B-A22B",
    "Qwen__Qwen3-32B",
    "deepseek-ai__DeepSeek-V3.2",
    "meta-llama__Meta-Llama-3.1-70B",
    "mistralai__Mixtral-8x22B-v0.1",
    "openai__gpt-oss-120b",
    "zai-org__GLM-5",
)

pytestmark = pytest.mark.skipif(not ORIGINALS.is_dir(), reason="no original config.json files beside the checkout")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_from_the_original_file(name: str) -> None:
    architecture = read_architecture(ORIGINALS / f"{name}.json")
    counted = census(architecture)
    assert (counted.total_parameters, counted.active_parameters) == COUNTS[name]
    assert architecture.unknown_fields == ()


def test_totals_are_the_published_ones() -> None:
    page = parameter_page(ORIGINALS)
    rows = [line.split(" | ") for line in page.splitlines() if " B | " in line]
    assert len(rows) == len(COUNTS)
    errors = [float(row[-2].removesuffix(" %")) for row in rows if row[-2]]
    assert len(errors) == 26
    assert max(map(abs, errors)) <= 0.6


def test_the_page_of_parameters_is_in_step_with_the_originals() -> None:
    assert parameter_page(ORIGINALS) == (ROOT / "docs" / "parameters.md").read_text()


def test_every_original_is_counted_here() -> None:
    assert {path.stem for path in ORIGINALS.glob("*.json")} == set(COUNTS)


@pytest.mark.parametrize("name", COMMON_KIND)
def test_generic_reader_counts_a_common_decoder_within_a_thousandth(name: str, tmp_path: Path) -> None:
    fields = json.loads((ORIGINALS / f"{name}.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"model_type": "nobody_knows"}))
    architecture = read_architecture(path)
    assert census(architecture).total_parameters == pytest.approx(COUNTS[name][0], rel=1e-3)
    assert any("nobody_knows" in sentence for sentence in architecture.approximations)


def test_generic_reader_refuses_a_pattern_of_layers_and_names_the_nearest_reader(tmp_path: Path) -> None:
    fields = json.loads((ORIGINALS / "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields | {"model_type": "nemotron_x"}))
    with pytest.raises(ConfigError, match="hybrid_override_pattern") as caught:
        read_architecture(path)
    assert "did you mean 'nemotron_h'" in str(caught.value)


def test_quantised_checkpoint_is_said_to_be_sized_in_bf16() -> None:
    architecture = read_architecture(ORIGINALS / "Qwen__Qwen3-235B-A22B-FP8.json")
    assert architecture.approximations == ("The checkpoint's weights are quantised (fp8); sizes are given in bf16.",)


def test_layers_of_hybrids_follow_their_lists() -> None:
    nano = read_architecture(ORIGINALS / "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json")
    kinds = [layer.mixer.kind if layer.mixer else "mixture_of_experts" for layer in nano.layers]
    assert (kinds.count("mamba2"), kinds.count("grouped_attention"), kinds.count("mixture_of_experts")) == (23, 6, 23)
    qwen = read_architecture(ORIGINALS / "Qwen__Qwen3.5-122B-A10B.json")
    full = [layer.index for layer in qwen.layers if layer.mixer and layer.mixer.kind == "grouped_attention"]
    assert full == list(range(3, 48, 4))


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 23 * (64 * 64 * 128 * 4 + 6144 * 3 * 2)),
        ("Qwen__Qwen3.5-122B-A10B", 36 * (64 * 128 * 128 * 4 + 12288 * 3 * 2)),
        ("openai__gpt-oss-120b", 18 * 128 * 2 * 8 * 64 * 2),
        ("deepseek-ai__DeepSeek-V4-Flash", 43 * 128 * 512 * 2),
    ],
)
def test_states_and_windows_do_not_grow(name: str, state_bytes: int) -> None:
    assert census(read_architecture(ORIGINALS / f"{name}.json")).state_bytes_per_sequence == state_bytes

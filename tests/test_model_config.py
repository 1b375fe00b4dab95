"""Reading of `config.json`: what is understood, what is named as unknown, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.model.architecture import BlockSparseAttention, GroupedAttention, LatentAttention, MixtureOfExperts
from simulator.model.census import census
from simulator.model.config import ConfigError, known_model_types, read_architecture

MODELS = Path(__file__).parents[1] / "scenarios" / "models"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
EXPERTS: dict[str, Any] = LLAMA | {
    "model_type": "some_moe",
    "tie_word_embeddings": False,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def read(config: Path, fields: object) -> Any:
    config.write_text(fields if isinstance(fields, str) else json.dumps(fields, indent=1))
    return read_architecture(config)


def refusal(config: Path, fields: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(config, fields)
    return str(caught.value)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def test_llama_is_read_into_equal_layers(config: Path) -> None:
    model = read(config, LLAMA)
    assert (model.hidden, model.vocabulary, len(model.layers), model.dtype) == (64, 100, 2, "bf16")
    assert model.layers[1].mixer == GroupedAttention(heads=4, kv_heads=2, head_dim=16)
    assert model.layers[1].feed_forward.intermediate == 96
    assert (model.unknown_fields, model.approximations) == ((), ())


def test_folder_of_a_config_is_read_too(config: Path) -> None:
    assert read(config, LLAMA) == read_architecture(config.parent)


def test_fields_without_cost_are_passed_over_and_others_named(config: Path) -> None:
    extra = {"bos_token_id": 1, "rope_theta": 1e4, "transformers_version": "4", "mystery": 3, "nothing": None}
    assert read(config, LLAMA | extra).unknown_fields == ("mystery",)


def test_unknown_fields_inside_parts_have_dotted_names(config: Path) -> None:
    fields = json.loads((MODELS / "kimi-k3.json").read_text())
    fields["text_config"]["linear_attn_config"]["twist"] = 1
    assert read(config, fields).unknown_fields == ("text_config.linear_attn_config.twist",)


def test_all_problems_are_listed_in_order_of_line(config: Path) -> None:
    fields = without(LLAMA, "vocab_size") | {"hidden_size": -64, "num_hidden_layers": "two"}
    assert refusal(config, fields).splitlines() == [
        f"{config}:1: vocab_size: missing: a whole number from 1 to 1000000000",
        f"{config}:3: hidden_size: found -64, expected a whole number from 1 to 1000000000",
        f"{config}:4: num_hidden_layers: found 'two', expected a whole number from 1 to 10000",
    ]


def test_problem_inside_a_part_has_the_line_of_its_own_key(config: Path) -> None:
    fields = {"hidden_size": 1, **json.loads((MODELS / "kimi-k3.json").read_text())}
    fields["text_config"]["hidden_size"] = 0
    line = next(n for n, text in enumerate(json.dumps(fields, indent=1).splitlines(), 1) if '"hidden_size": 0' in text)
    assert f"{config}:{line}: text_config.hidden_size: found 0" in refusal(config, fields)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (-1, "found -1"),
        (0, "found 0"),
        (10**400, "found a number of about 401 digits"),
        (10**12, "found 1000000000000"),
        (4096.0, "found 4096.0"),
        (float("nan"), "found nan"),
        (float("inf"), "found inf"),
        (True, "found true"),
        ("4096", "found '4096'"),
        ([64], "found [64]"),
        ({"a": 1}, "found {'a': 1}"),
        (None, "missing"),
        ("x" * 500, "found 'xxx"),
    ],
)
def test_hostile_sizes_are_refused_with_what_was_found(config: Path, value: object, found: str) -> None:
    message = refusal(config, LLAMA | {"hidden_size": value})
    assert f"hidden_size: {found}" in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.json:1: not JSON"),
        ("{", "config.json:1: not JSON"),
        ('{\n"a": 1,\n}', "config.json:3: not JSON"),
        ("[]", "found a JSON list, expected an object"),
        ("3", "found a JSON number"),
        ('"llama"', "found a JSON string"),
        ("null", "found a JSON null"),
        ("true", "found a JSON truth value"),
        ("[" * 100_000, "nested too deep"),
        ('{"a":' * 100_000, "nested too deep"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "thousands of digits"),
    ],
)
def test_files_that_are_no_object_are_refused(config: Path, text: str, message: str) -> None:
    assert message in refusal(config, text)


def test_missing_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_architecture(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_architecture(tmp_path / "binary.json")
    with pytest.raises(ConfigError, match="File name too long"):
        read_architecture(tmp_path / ("x" * 5000))
    with pytest.raises(ConfigError, match="not a regular file"):
        read_architecture(Path("/dev/zero"))


def test_huge_files_are_refused_unread(config: Path) -> None:
    with config.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ConfigError, match="larger than"):
        read_architecture(config)


def test_byte_order_mark_is_harmless(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_architecture(config).hidden == 64


def test_repeated_keys_are_refused(config: Path) -> None:
    text = json.dumps(LLAMA)[:-1] + ', "hidden_size": 128}'
    assert "hidden_size: stands 2 times in one object" in refusal(config, text)


def test_absent_model_type_is_refused_with_those_known(config: Path) -> None:
    message = refusal(config, without(LLAMA, "model_type"))
    assert "model_type: missing" in message
    assert "deepseek_v3, deepseek_v32" in message


def test_near_miss_of_a_model_type_is_suggested_where_the_file_cannot_be_read(config: Path) -> None:
    message = refusal(config, {"model_type": "kimi_k4"})
    assert "did you mean 'kimi_k" in message
    assert "num_hidden_layers: missing" in message


def test_terminal_codes_of_a_file_are_not_passed_on(config: Path) -> None:
    assert "\x1b" not in refusal(config, {"model_type": "\x1b[2Jevil"})
    model = read(config, EXPERTS | {"model_type": "\x1b[2Jevil", "\x1b[2J": 1})
    assert not any("\x1b" in text for text in (*model.approximations, *model.unknown_fields))


def test_unknown_family_with_experts_is_read_by_common_names(config: Path) -> None:
    model = read(config, EXPERTS)
    mixture = model.layers[1].feed_forward
    assert model.layers[0].feed_forward.kind == "dense_feed_forward"
    assert mixture == MixtureOfExperts(8, 2, 32, shared_experts=1, shared_intermediate=32)
    assert model.unknown_fields == ()
    assert model.approximations[0].startswith("No reader knows the model_type 'some_moe'")


def test_unknown_family_with_latent_attention_and_experts_in_a_latent_width(config: Path) -> None:
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "moe_latent_size": 20}
    model = read(config, EXPERTS | latent)
    assert model.layers[0].mixer == LatentAttention(4, None, 16, 8, 4, 8)
    assert model.layers[1].feed_forward.latent == 20


def test_unknown_family_says_what_it_reads_of_windows_and_ties(config: Path) -> None:
    said = " ".join(read(config, without(EXPERTS, "tie_word_embeddings") | {"sliding_window": 8}).approximations)
    assert "tie_word_embeddings is absent" in said
    assert "Which layers have the sliding window of 8 is not said" in said


def test_unknown_layer_types_are_approximated_by_name(config: Path) -> None:
    model = read(config, EXPERTS | {"layer_types": ["sliding_attention", "retention"], "sliding_window": 8})
    assert [layer.mixer.window for layer in model.layers] == [8, None]
    assert "Layers of type 'retention' are read as softmax attention over the whole sequence." in model.approximations


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads evenly"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size 64 is no multiple of 5"),
        ({"num_hidden_layers": 10_001}, "from 1 to 10000"),
        ({"attention_bias": 1}, "found 1, expected true or false"),
        ({"torch_dtype": "int4"}, "found 'int4', expected one of bfloat16, float16, float32"),
        ({"quantization_config": "fp8"}, "found 'fp8', expected an object"),
    ],
)
def test_values_that_contradict_are_refused(config: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(config, LLAMA | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "a token cannot visit 9 of 8 experts"),
        ({"layer_types": ["full_attention"]}, "found 1 entries for 2 layers"),
        ({"moe_layer_freq": [0, 1, 1]}, "found 3 entries for 2 layers"),
        ({"mlp_layer_types": ["dense", "odd"]}, "found 'odd', expected each to be one of dense, sparse"),
        ({"partial_rotary_factor": 1.5}, "found 1.5, expected a number from 0 to 1"),
        ({"ssm_state_size": 128}, "only the reader of a known model_type understands it"),
    ],
)
def test_contradictions_of_experts_and_layers_are_refused(config: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(config, EXPERTS | change)


def test_full_attention_layers_of_kimi_must_cover_the_model(config: Path) -> None:
    fields = json.loads((MODELS / "kimi-linear-48b-a3b.json").read_text())
    fields["linear_attn_config"]["full_attn_layers"].append(28)
    assert "it must name each layer from 1 to 27 once" in refusal(config, fields)


def test_kimi_k31_needs_its_indexer(config: Path) -> None:
    fields = json.loads((MODELS / "kimi-k3.1.json").read_text())
    del fields["text_config"]["dsa_config"]
    assert "text_config.dsa_config: missing: an object" in refusal(config, fields)


def test_kimi_k31_says_what_it_assumes_of_the_indexer() -> None:
    (sentence,) = read_architecture(MODELS / "kimi-k3.1.json").approximations
    assert "wq_b" in sentence


def test_a_token_keeps_within_its_best_groups_of_experts() -> None:
    model = read_architecture(MODELS / "deepseek-v3.json")
    part = next(model.moe_layers()).feed_forward
    assert (part.groups, part.best_groups, part.top_k) == (8, 4, 8)
    assert not model.approximations


def test_glm_52_shares_the_choice_of_an_indexer(config: Path) -> None:
    fields = json.loads((MODELS / "deepseek-v3.2.json").read_text())
    kinds = ["full" if index % 4 == 0 else "shared" for index in range(61)]
    model = read(config, fields | {"model_type": "glm_moe_dsa", "indexer_types": kinds, "index_topk_freq": 4})
    assert [layer.mixer.indexer.shared for layer in model.layers[:5]] == [False, True, True, True, False]
    assert census(model).index_bytes_per_token == 16 * 132


def test_minimax_m3_chooses_blocks_in_the_layers_that_its_list_names(config: Path) -> None:
    fields = EXPERTS | {
        "model_type": "minimax_m3",
        "num_local_experts": 8,
        "intermediate_size": 32,
        "dense_intermediate_size": 96,
        "moe_layer_freq": [0, 1],
        "sparse_attention_config": {
            "sparse_attention_freq": [0, 1],
            "sparse_block_size": 128,
            "sparse_topk_blocks": 16,
            "sparse_num_index_heads": 4,
            "sparse_index_dim": 16,
        },
    }
    model = read(config, without(fields, "n_routed_experts"))
    assert isinstance(model.layers[0].mixer, GroupedAttention)
    assert isinstance(model.layers[1].mixer, BlockSparseAttention)
    assert (model.layers[0].feed_forward.intermediate, model.layers[1].feed_forward.intermediate) == (96, 32)


def test_every_family_is_found_by_its_file() -> None:
    assert {"llama", "mixtral", "kimi_k31", "nemotron_h", "deepseek_v4", "gpt_oss"} <= set(known_model_types())


HOSTILE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(path.stem for path in MODELS.glob("*.json"))), data=st.data())
def test_any_value_in_any_field_is_counted_or_refused(config: Path, name: str, data: st.DataObject) -> None:
    fields = json.loads((MODELS / f"{name}.json").read_text())
    part = data.draw(st.sampled_from([fields, *(value for value in fields.values() if isinstance(value, dict))]))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(HOSTILE)
    try:
        total = census(read(config, fields)).total_parameters
    except ConfigError as error:
        total = len(error.problems)
    assert total > 0

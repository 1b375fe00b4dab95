"""Decoders of the GPT-2 kind: parameters as published."""

import json
from pathlib import Path

import pytest

from simulator.model.census import census
from simulator.model.config import ConfigError, read_architecture

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024}
MPT_7B = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "no_bias": True}
STARCODER2_7B = {
    "model_type": "starcoder2", "hidden_size": 4608, "num_hidden_layers": 32, "num_attention_heads": 36,
    "num_key_value_heads": 4, "intermediate_size": 18432, "vocab_size": 49152, "sliding_window": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip

MEGATRON = {
    "model_type": "megatron_gpt", "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "group_query_attention": True, "num_query_groups": 8, "max_position_embeddings": 8192, "vocab_size": 131200,
    "untie_embeddings_and_output_weights": True,
}  # fmt: skip


def read(folder: Path, fields: dict[str, object]):
    file = folder / "config.json"
    file.write_text(json.dumps(fields))
    return read_architecture(file)


def test_mpt_comes_near_the_published_total(tmp_path):
    assert census(read(tmp_path, MPT_7B)).total_parameters == pytest.approx(6_649_286_656, rel=0.007)


def test_gpt2_is_exact_with_its_1024_learnt_positions(tmp_path):
    counted = census(read(tmp_path, GPT2))
    assert counted.total_parameters == 124_439_808
    # A token looks its position up; the tied embedding is the head, which it meets.
    assert counted.active_parameters == 124_439_808 - 1024 * 768


def test_a_layer_of_gpt2_has_two_matrices_four_wide_and_biases(tmp_path):
    layer = read(tmp_path, GPT2).layers[0]
    assert (layer.feed_forward.intermediate, layer.feed_forward.gated, layer.feed_forward.bias) == (3072, False, True)
    assert (layer.mixer.heads, layer.mixer.head_dim, layer.mixer.rotary_dim) == (12, 64, 0)


def test_starcoder2_groups_its_heads_within_a_window(tmp_path):
    mixer = read(tmp_path, STARCODER2_7B).layers[0].mixer
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.window) == (36, 4, 128, 4096)


def test_heads_that_do_not_share_the_width_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="n_embd 768 is no multiple of 13"):
        read(tmp_path, GPT2 | {"n_head": 13})


def test_a_gpt_in_the_words_of_megatron(tmp_path):
    # Joined q, k and v, output projection, two matrices of 4 x 4,096, their biases, two norms with shifts.
    layer = 4096 * 6144 + 6144 + 4096 * 4096 + 4096 + 2 * 4096 * 16384 + 16384 + 4096 + 4 * 4096
    ends = 2 * 131200 * 4096 + 8192 * 4096 + 2 * 4096
    assert census(read(tmp_path, MEGATRON)).total_parameters == 32 * layer + ends


def test_megatron_words_for_a_gated_model_with_rotation_and_no_biases(tmp_path):
    gated = read(
        tmp_path,
        MEGATRON
        | {"swiglu": True, "position_embedding_type": "rope", "normalization": "RMSNorm", "disable_bias_linear": True},
    )
    # 8 x 4,096 / 3 = 10,922 is 170 whole 64s and a part of one.
    assert gated.layers[0].feed_forward.intermediate == 170 * 64
    assert (gated.learnt_positions, gated.norm_bias, gated.layers[0].mixer.rotary_dim) == (0, False, None)
    assert not gated.layers[0].mixer.qkv_bias


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_query_groups": 5}, "32 attention heads cannot share 5 groups evenly"),
        ({"num_experts": 8}, "only models without experts are read"),
        ({"position_embedding_type": "yarn"}, "expected one of learned_absolute, rope, none"),
    ],
)
def test_what_of_megatron_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, MEGATRON | change)

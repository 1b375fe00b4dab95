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


def read(folder: Path, fields: dict[str, object]):
    file = folder / "config.json"
    file.write_text(json.dumps(fields))
    return read_architecture(file)


@pytest.mark.parametrize(("fields", "published"), [(GPT2, 124_439_808), (MPT_7B, 6_649_286_656)])
def test_parameters_come_to_the_published_total(tmp_path, fields, published):
    assert census(read(tmp_path, fields)).total_parameters == pytest.approx(published, rel=0.007)


def test_gpt2_is_exact_but_for_its_1024_learnt_positions(tmp_path):
    assert census(read(tmp_path, GPT2)).total_parameters == 124_439_808 - 1024 * 768


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

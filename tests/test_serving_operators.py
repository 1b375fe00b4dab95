from dataclasses import replace

import pytest

from simulator.model.architecture import Layer
from simulator.model.config import read_architecture
from simulator.model.serving.formats import BF16, FORMATS, Formats
from simulator.model.serving.held import CacheNeed, cache_need, held_layer, served_problems, weight_bytes
from simulator.model.serving.iteration import Chunk, Iteration
from simulator.model.serving.layers import Setting, served_layer
from simulator.shipped import shipped

MODELS = shipped("scenarios", "models")
NATIVE = frozenset({"bf16", "fp8"})
ONE = Setting(1, 1, exchanges=False, formats=Formats(), native=NATIVE)


def model(name):
    return read_architecture(MODELS / f"{name}.json")


def kernels(name, iteration, setting=ONE, at=-1):
    found = served_layer(model(name), model(name).layers[at], iteration, setting)
    return {each.operator.name: each.operator.forward for each in found}


def test_pairs_of_a_chunk_are_those_of_a_causal_square_less_the_cached_corner():
    assert Chunk(4).pairs == 10
    assert Chunk(2, 3).pairs == 4 + 5
    assert Chunk(4).pairs_within(2) == 1 + 2 + 2 + 2
    assert Chunk(3, 2).pairs_within(4) == 3 + 4 + 4
    assert Chunk(3, 9).pairs_within(4) == 12


def test_halves_hold_all_tokens_and_a_prompt_alone_is_cut_in_order():
    first, second = Iteration((Chunk(101, 7),)).halves
    assert (first.prefill, second.prefill) == ((Chunk(51, 7),), (Chunk(50, 58),))
    first, second = Iteration((), (1, 2, 3)).halves
    assert sorted(first.decode_contexts + second.decode_contexts) == [1, 2, 3]


def test_a_decoding_sequence_reads_all_its_keys_and_values_once():
    (kernel,) = kernels("llama-3.1-8b", Iteration(decode_contexts=(1000, 24)))["decode_attention"]
    # 8 heads of 128, keys and values, 2 bytes; queries and results of 32 heads for two rows.
    assert kernel.bytes == 1024 * 2 * 8 * 128 * 2 + 2 * 2 * 2 * 32 * 128
    assert kernel.flops == 4 * 32 * 128 * 1024


def test_a_prompt_behind_a_cached_prefix_computes_the_pairs_with_it():
    (kernel,) = kernels("llama-3.1-8b", Iteration((Chunk(10, 90),)))["attention"]
    assert kernel.flops == 4 * 32 * 128 * (10 * 90 + 55)
    # All keys: a causal square with as many pairs a row would have 191.
    assert kernel.shape == (32, 128, 100)


def test_latents_are_absorbed_while_decoding_and_decompressed_in_prompts():
    both = kernels("deepseek-v3", Iteration((Chunk(8, 4),), (100,)))
    assert both["decode_attention"][0].flops == 2 * 128 * (576 + 512) * 100
    assert both["kv_b_proj"][0].shape == (12, 128 * 256, 512)
    assert both["attention"][0].flops == 2 * 128 * (192 + 128) * (8 * 4 + 36)
    assert set(kernels("deepseek-v3", Iteration((), (100,)))).isdisjoint({"kv_b_proj", "join_keys", "attention"})


def test_sparse_attention_scores_all_keys_and_reads_the_best():
    layers = model("deepseek-v3.2").layers
    found = kernels("deepseek-v3.2", Iteration((), (100_000, 50_000)), at=len(layers) - 1)
    (scores,) = found["index_scores"]
    assert scores.flops == 2 * (64 * 128 + 64) * 150_000
    assert scores.bytes > 150_000 * 132
    assert found["sparse_attention"][0].flops == 2 * 2 * 2048 * 128 * (576 + 512)


def test_a_step_of_a_recurrent_state_reads_and_writes_it():
    architecture = model("kimi-k3.1")
    at = next(n for n, layer in enumerate(architecture.layers) if layer.mixer.kind == "kimi_delta_attention")
    found = kernels("kimi-k3.1", Iteration((), (10, 1_000_000)), at=at)
    state = 96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2
    assert found["state_step"][0].bytes == 2 * 2 * state
    assert "delta_rule" not in found


def test_cache_of_kimi_k3_1_as_published():
    architecture = model("kimi-k3.1")
    need = sum((cache_need(layer.mixer, "bf16") for layer in architecture.layers), CacheNeed())
    assert need.token_bytes == 27_648 + 3_168
    assert need.sequence_bytes == pytest.approx(434.1e6 + 15.3e6, rel=1e-3)
    eight = sum((cache_need(layer.mixer, "fp8") for layer in architecture.layers), CacheNeed())
    assert eight.token_bytes == 15_744 + 3_168


def test_a_window_stops_growing():
    need = CacheNeed(token_bytes=2.0, sequence_bytes=7.0, windows=((10, 3.0),))
    assert need.bytes_of(4) == 7 + 8 + 12
    assert need.bytes_of(100) == 7 + 200 + 30
    assert (need + need).bytes_of(100) == 2 * need.bytes_of(100)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bf16", 2.0), ("fp8", 1 + 4 / 128**2), ("int8", 1 + 4 / 256), ("int4", 0.5 + 2 / 128), ("mxfp4", 0.5 + 1 / 32),
     ("nvfp4", 0.5 + 1 / 16)],
)  # fmt: skip
def test_bytes_of_a_weight_hold_its_scales(name, expected):
    assert FORMATS[name].weight_bytes(512, 256) == pytest.approx(512 * 256 * expected)


def test_experts_and_other_weights_have_formats_of_their_own():
    architecture = model("deepseek-v3")
    held = held_layer(architecture.layers[-1], 1, 1)
    plain = weight_bytes(architecture, held, Formats(), 256)
    mixed = weight_bytes(architecture, held, Formats(BF16, FORMATS["nvfp4"]), 8)
    assert plain["experts"] == 256 * 3 * 7168 * 2048 * 2
    assert mixed["experts"] == 8 * 3 * 7168 * 2048 * (0.5 + 1 / 16)
    assert mixed["weights"] == plain["weights"]
    assert plain["absorbed weights"] == 2 * 512 * 128 * (128 + 128)


def test_products_move_the_bytes_of_the_format_and_compute_in_what_the_part_has():
    eight = replace(ONE, formats=Formats(FORMATS["fp8"], FORMATS["mxfp4"]))
    (cast, product) = kernels("llama-3.1-8b", Iteration((), (10,)), eight)["o_proj"]
    assert (cast.kind, product.kind, product.dtype) == ("quantize_blocks", "served_gemm", "fp8/blockwise")
    assert product.bytes == 4096 * (1 + 4 / 128) + 4096 * 4096 * (1 + 4 / 128**2) + 4096 * 2
    old = replace(eight, native=frozenset({"bf16"}))
    (product,) = kernels("llama-3.1-8b", Iteration((), (10,)), old)["o_proj"]
    assert (product.kind, product.dtype) == ("served_gemm", "bf16")
    assert product.bytes == 4096 * 2 + 4096 * 4096 * (1 + 4 / 128**2) + 4096 * 2


def test_products_of_many_rows_are_those_of_training():
    assert kernels("llama-3.1-8b", Iteration((), (10,) * 64))["o_proj"][0].kind == "served_gemm"
    assert kernels("llama-3.1-8b", Iteration((), (10,) * 65))["o_proj"][0].kind == "gemm"


def test_rows_travel_in_eight_bits_to_experts_that_multiply_in_them():
    asked = replace(ONE, exchanges=True, formats=Formats(BF16, FORMATS["fp8"]))
    found = served_layer(model("deepseek-v3"), model("deepseek-v3").layers[-1], Iteration((), (10,)), asked)
    wires = {each.operator.name: each.operator.payload_bytes for each in found if each.operator.payload_bytes}
    assert wires == {"dispatch": 7168 * (1 + 4 / 128), "combine": 7168 * 2}
    # A token is cast before it leaves, and its rows neither sorted in bf16 nor cast again.
    moved = {each.operator.name: [(one.kind, one.bytes) for one in each.operator.forward] for each in found}
    assert moved["dispatch"] == [("quantize_blocks", 7168 * (2 + 1 + 4 / 128))]
    assert moved["sort_by_expert"] == [("copy", 2 * 7168 * (1 + 4 / 128))]
    assert [kind for kind, _ in moved["experts_fc1"]] == ["served_experts"]


def test_ranks_with_the_same_tokens_add_both_sorts_of_experts_up_at_once():
    asked = replace(ONE, tp=8, etp=8)
    found = served_layer(model("deepseek-v3"), model("deepseek-v3").layers[-1], Iteration((), (10,) * 4), asked)
    sums = [each.operator.forward_collectives for each in found if each.operator.name == "tp_reduce"]
    assert [[one.bytes for one in each] for each in sums] == [[4 * 7168 * 2], [4 * 7168 * 2]]
    assert not any(each.operator.payload_bytes for each in found)
    fc1 = next(each.operator for each in found if each.operator.name == "experts_fc1")
    assert fc1.forward[-1].shape == (2 * 2048 // 8, 7168)


def test_sums_are_part_of_the_norms_behind_them():
    found = kernels("llama-3.1-8b", Iteration((), (10,) * 4))
    assert {"mixer_add", "feed_forward_add"}.isdisjoint(found)
    (norm,) = found["post_attention_layernorm"]
    # Two reads and two writes of the stream, and a statistic a row.
    assert (norm.kind, norm.bytes) == ("served_norm", 4 * 4 * 4096 * 2 + 4 * 4)


def test_kinds_of_attention_that_are_not_simulated_are_told():
    architecture = model("llama-3.1-8b")
    assert served_problems(architecture, "fp8") == []
    kimi = model("kimi-k3.1")
    recurrent: tuple[Layer, ...] = tuple(one for one in kimi.layers if one.mixer.kind == "kimi_delta_attention")
    assert "could be fp8" in served_problems(replace(kimi, layers=recurrent), "fp8")[0]

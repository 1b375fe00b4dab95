from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_operators import MODELS, forward_flops, kernels, model, named, one

from simulator.model.architecture import (
    BlockSparseAttention,
    CompressedAttention,
    GatedDeltaNet,
    GroupedAttention,
    Indexer,
    Mamba2,
)
from simulator.model.operator import Workload
from simulator.model.operators import block_sparse_attention, gated_delta_net, mamba2
from simulator.model.operators.attention_core import causal_pairs, chunk_pairs, window_pairs
from simulator.model.operators.compressor import compressed_pairs
from simulator.model.operators.layers import component_operators, layer_operators
from simulator.model.parameters import component_parameters

ATTENTION = GroupedAttention(32, 8, 128)
LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=4).map(tuple)


@given(LENGTHS, st.integers(1, 80))
def test_pairs_are_what_counting_query_by_query_gives(lengths: tuple[int, ...], size: int) -> None:
    queries = [t for length in lengths for t in range(1, length + 1)]
    assert causal_pairs(lengths) == sum(queries)
    assert window_pairs(lengths, size) == sum(min(t, size) for t in queries)
    assert chunk_pairs(lengths, size) == sum((t - 1) % size + 1 for t in queries)
    assert compressed_pairs(lengths, size) == sum(t // size for t in queries)
    assert compressed_pairs(lengths, size, 3) == sum(min(t // size, 3) for t in queries)


def test_causal_attention_costs_512_flops_a_pair_and_head_of_128() -> None:
    core = one(component_operators(ATTENTION, 4096, Workload((8192,))), "attention")
    pairs = 8192 * 8193 // 2
    assert core.forward[0].flops == 512 * 32 * pairs
    # five products instead of two
    assert core.backward[0].flops == 2.5 * core.forward[0].flops
    assert core.forward[0].bytes == 8192 * (2 * (32 + 8 + 8 + 32) * 128 + 4 * 32)


def test_attention_never_crosses_sequences() -> None:
    whole = one(component_operators(ATTENTION, 4096, Workload((8192,))), "attention").forward[0].flops
    halves = one(component_operators(ATTENTION, 4096, Workload((4096, 4096))), "attention").forward[0].flops
    assert whole / halves == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("window", "chunk", "pairs"), [(512, None, 917_760), (None, 512, 525_312), (4096, None, 2_098_176)]
)
def test_window_and_chunk_bound_the_pairs(window: int | None, chunk: int | None, pairs: int) -> None:
    # 512 x 513 / 2 + 1,536 x 512; four chunks of 512 x 513 / 2; 2,048 x 2,049 / 2
    mixer = replace(ATTENTION, window=window, chunk=chunk)
    core = one(component_operators(mixer, 4096, Workload((2048,))), "attention")
    assert core.forward[0].flops == 512 * 32 * pairs


def test_a_fused_stack_projects_q_k_and_v_at_once() -> None:
    biased = replace(ATTENTION, qkv_bias=True)
    fused = one(component_operators(biased, 4096, Workload((64,))), "qkv_proj")
    assert fused.forward[0].shape == (64, 6144, 4096)
    assert len(fused.weights) == 6
    eager = named(component_operators(biased, 4096, Workload((64,), "eager")), "q_proj", "k_proj", "v_proj")
    assert sum(o.forward[0].flops for o in eager) == fused.forward[0].flops
    # three products read one input: two sums of its gradients
    assert sum(len(o.backward) for o in eager) == 5


def test_rotation_of_part_of_a_head_joins_the_rest_again() -> None:
    partial = one(component_operators(replace(ATTENTION, rotary_dim=64), 4096, Workload((64,), "eager")), "rotary")
    full = one(component_operators(ATTENTION, 4096, Workload((64,), "eager")), "rotary")
    assert len(partial.forward) == len(full.forward) + 2
    assert "rotary" not in {
        o.name for o in component_operators(replace(ATTENTION, rotary_dim=0), 4096, Workload((64,)))
    }


def test_forward_products_of_a_dense_model_cost_twice_its_linear_parameters() -> None:
    for name in ("llama-3.1-8b", "llama-3.1-70b"):
        architecture, workload = model(name), Workload((1024,))
        layer = architecture.layers[0]
        assert layer.mixer is not None
        assert layer.feed_forward is not None
        held = [p for c in (layer.mixer, layer.feed_forward) for p in component_parameters(c, architecture.hidden)]
        linear = sum(p.elements for p in held if p.linear)
        assert forward_flops(layer_operators(architecture, layer, workload)) == 2 * linear * 1024


@given(
    heads=st.sampled_from([4, 8]), kv_heads=st.sampled_from([1, 2, 4]), head_dim=st.sampled_from([64, 128]),
    hidden=st.sampled_from([256, 512]), gate=st.booleans(), tokens=st.integers(1, 300),
    execution=st.sampled_from(["eager", "compiled", "fused"]),
)  # fmt: skip
def test_products_cost_twice_the_linear_parameters_in_every_mode(
    heads: int, kv_heads: int, head_dim: int, hidden: int, gate: bool, tokens: int, execution: str
) -> None:
    mixer = GroupedAttention(heads, kv_heads, head_dim, output_gate=gate)
    workload = Workload((tokens,), execution)  # type: ignore[arg-type]
    operators = component_operators(mixer, hidden, workload)
    linear = sum(p.elements for p in component_parameters(mixer, hidden) if p.linear)
    assert forward_flops(operators) == 2 * linear * tokens
    products = [k for o in operators for k in (*o.backward, *o.backward_weight) if k.kind == "gemm"]
    assert sum(k.flops for k in products) == 4 * linear * tokens
    assert all(2 * k.shape[0] * k.shape[1] * k.shape[2] == k.flops for k in products)


def test_nothing_is_negative_and_every_kernel_has_a_known_kind() -> None:
    known = {
        *("gemm", "grouped_gemm", "attention", "kda", "scan", "conv", "indexer", "sparse_attention"),
        *("kda_prepare", "kda_scan", "kda_local", "indexer_choice", "flash_mla", "vector_products"),
        *("elementwise", "broadcast", "cast_up", "cast_down", "copy", "transpose", "cat", "fill", "masked_fill"),
        *("reduction", "norm", "softmax", "loss", "gather", "scatter", "scatter_put", "topk", "sort"),
    }
    for path in sorted(MODELS.glob("*.json")):
        architecture = model(path.stem)
        for layer in architecture.layers[:5]:
            for operator in layer_operators(architecture, layer, Workload((64,), "eager")):
                for kernel in kernels(operator):
                    assert kernel.kind in known
                    assert min(kernel.flops, kernel.bytes, kernel.fixed_bytes) >= 0
                    assert kernel.launches >= 1


def test_gated_delta_net_of_qwen3_next() -> None:
    mixer = GatedDeltaNet(16, 32, 128, 128, 4)
    # 6 d^2 + 2 C (3 + 2) d + 32 x 16^3 / 64: the plain scores cost more than KDA's sub-chunks
    assert gated_delta_net.forward_flops(mixer) == 98_304 + 81_920 + 2_048
    core = one(component_operators(mixer, 2048, Workload((4096,))), "delta_rule")
    assert core.forward[0].flops == 182_272 * 32 * 4096
    # q and k of 16 heads, v and output of 32, two fp32 gates a value head
    assert core.forward[0].bytes == 4096 * (2 * 2 * 16 * 128 + 2 * 2 * 32 * 128 + 2 * 4 * 32)
    chain = one(component_operators(mixer, 2048, Workload((4096,), "compiled")), "delta_rule")
    assert sum(k.flops for k in chain.forward) == pytest.approx(core.forward[0].flops)


def test_mamba2_of_nemotron_3_nano() -> None:
    mixer = Mamba2(64, 64, 8, 128, 4)
    # 8 groups of 2 x 128 x 128, 64 heads of 2 x 128 x 64 + 4 x 128 x 64
    assert mamba2.forward_flops(mixer) == 262_144 + 64 * 49_152
    operators = component_operators(mixer, 2688, Workload((1024,)))
    linear = sum(p.elements for p in component_parameters(mixer, 2688) if p.linear)
    assert forward_flops(operators) == 2 * linear * 1024


def test_compressed_attention_of_deepseek_v4() -> None:
    indexer = Indexer(64, 128, 1024)
    mixer = CompressedAttention(128, 512, 1536, 64, 16, 1024, 128, 4, indexer)
    length = 16_384
    operators = component_operators(mixer, 7168, Workload((length,)))
    pairs = sum(min(t, 128) + min(t // 4, 1024) for t in range(1, length + 1))
    core = one(operators, "attention")
    assert core.forward[0].flops == 2 * 128 * (512 + 512) * pairs
    scores = one(operators, "index_scores").forward[0]
    assert scores.flops == 2 * 64 * 129 * sum(t // 4 for t in range(1, length + 1))
    # each of 16 groups: 4,096 dims of its heads to a rank of 1,024
    assert one(operators, "o_a_proj").forward[0].flops == 2 * length * 16 * 4096 * 1024
    window_only = replace(mixer, compress_ratio=0, indexer=None)
    alone = one(component_operators(window_only, 7168, Workload((length,))), "attention")
    assert alone.forward[0].flops == 2 * 128 * 1024 * window_pairs((length,), 128)


def test_block_sparse_attention_of_minimax_m3() -> None:
    mixer = BlockSparseAttention(GroupedAttention(64, 4, 128, qk_norm="head", rotary_dim=64), 128, 16, 4, 128)
    operators = block_sparse_attention.operators(mixer, 6144, Workload((8192,)))
    # 16 blocks of 128 keys: a window of 2,048
    assert one(operators, "attention").forward[0].flops == 512 * 64 * window_pairs((8192,), 2048)
    assert one(operators, "index_scores").forward[0].flops == 2 * 4 * 128 * causal_pairs((8192,))
    weights = {weight for operator in operators for weight in operator.weights}
    assert weights == {parameter.name for parameter in component_parameters(mixer, 6144)}

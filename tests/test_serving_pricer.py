from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.model.config import read_architecture
from simulator.parallel.mesh import Mesh
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Chunk, Iteration
from simulator.program.serving.memory import rank_memory
from simulator.program.serving.pricer import IterationPricer
from simulator.shipped import shipped

MODELS = shipped("scenarios", "models")
NODE = build_cluster("hgx-h200", "single-node", 8, Path())


def test_one_sequence_takes_at_least_what_reading_all_weights_takes() -> None:
    deployment = Deployment(read_architecture(MODELS / "llama-3.1-8b.json"), NODE, Mesh())
    price = IterationPricer(deployment).price(Iteration(decode_contexts=(1024,)))
    # 7.50e9 weights in bf16 without the embedding, at 4.8 TB/s.
    assert price.latency_s > 2 * 7.504e9 / 4.8e12
    assert price.latency_s == price.interval_s
    assert price.parts.launch_bound_s == price.parts.exchange_s == 0.0


def test_nothing_to_compute_takes_no_time() -> None:
    deployment = Deployment(read_architecture(MODELS / "llama-3.1-8b.json"), NODE, Mesh())
    assert IterationPricer(deployment).price(Iteration()).latency_s == 0.0


def test_a_prompt_is_launched_kernel_by_kernel_and_a_small_one_waits_for_it() -> None:
    deployment = Deployment(read_architecture(MODELS / "llama-3.1-8b.json"), NODE, Mesh())
    pricer = IterationPricer(deployment)
    assert pricer.price(Iteration((Chunk(16),))).parts.launch_bound_s > 0.0
    assert pricer.price(Iteration((Chunk(8192),))).parts.launch_bound_s < 1e-3


def test_a_token_of_a_prompt_reads_a_long_cache_as_decoding_does() -> None:
    deployment = Deployment(read_architecture(MODELS / "llama-3.1-8b.json"), NODE, Mesh())
    price = IterationPricer(deployment).price
    prompt, decoding = (price(one).parts for one in (Iteration((Chunk(1, 15_000),)), Iteration((), (15_001,))))
    # Launched one by one rather than in a graph, each of 32 layers' kernels begins up to 2 us later.
    assert prompt.attention_s == pytest.approx(decoding.attention_s, abs=32 * 2 * 2e-6)


def test_two_halves_hide_exchanges_beside_each_other() -> None:
    model = read_architecture(MODELS / "deepseek-v3.json")
    cluster = build_cluster("hgx-h200", "rail-fat-tree-400g", 16, Path())
    even = np.full((58, 16, 16), 1 / 256)
    alone, woven = (
        IterationPricer(Deployment(model, cluster, Mesh(dp_shard=16, ep=16), two_batch_overlap=on, popularity=even))
        for on in (False, True)
    )
    prompt = Iteration((Chunk(8192),))
    assert woven.price(prompt).parts.exchange_s < 0.5 * alone.price(prompt).parts.exchange_s


def test_a_rank_holds_weights_in_their_format_and_what_a_sequence_needs() -> None:
    deployment = Deployment(read_architecture(MODELS / "llama-3.1-8b.json"), NODE, Mesh())
    memory = rank_memory(deployment, 0)
    assert memory.weight_bytes == 2 * 8_030_261_248
    # 32 layers of 8 heads of 128, keys and values, 2 bytes.
    assert memory.cache.bytes_of(1000) == 32 * 8 * 128 * 2 * 2 * 1000
    assert memory.communicators == 0


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_takes_turns_at_the_pace_of_its_slowest_stage(stages: int) -> None:
    model = read_architecture(MODELS / "llama-3.1-8b.json")
    price = IterationPricer(Deployment(model, NODE, Mesh(pp=stages))).price(Iteration(decode_contexts=(1024,) * 8))
    assert price.parts.pipeline_s > 0.0
    assert price.latency_s / stages < price.interval_s < price.latency_s


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "kimi-k3.1"])
def test_longer_contexts_and_more_sequences_never_take_less(name: str) -> None:
    model = read_architecture(MODELS / f"{name}.json")
    layers = list(model.moe_layers())
    experts = layers[0].feed_forward.experts if layers else 0  # type: ignore[union-attr]
    even = np.full((len(layers), 1, experts), 1 / experts) if layers else None
    pricer = IterationPricer(Deployment(model, NODE, Mesh(tp=8, etp=8 if layers else 1), popularity=even))
    by_context = [pricer.price(Iteration((), (context,) * 8)).latency_s for context in (1, 64, 1000, 30_000, 1_000_000)]
    # Without a cache, 512 tokens have too few keys to split them.
    by_prompt = [pricer.price(Iteration((Chunk(512, cached),))).latency_s for cached in (100, 10_000, 1_000_000)]
    by_count = [pricer.price(Iteration((), (2000,) * count)).latency_s for count in (1, 2, 7, 30, 64, 200)]
    assert by_context == sorted(by_context)
    assert by_prompt == sorted(by_prompt)
    assert by_count == sorted(by_count)


def test_parts_and_grades_add_up_to_the_time() -> None:
    model = read_architecture(MODELS / "kimi-k3.1.json")
    even = np.full((len(list(model.moe_layers())), 1, 896), 1 / 896)
    price = IterationPricer(Deployment(model, NODE, Mesh(tp=8, etp=8), popularity=even)).price
    decoded = price(Iteration((), (5000,) * 4))
    assert sum(decoded.grades.values()) == pytest.approx(decoded.latency_s)
    assert decoded.parts.total_s == decoded.latency_s


def test_rows_travel_only_where_ranks_have_tokens_of_their_own() -> None:
    model = read_architecture(MODELS / "deepseek-v3.json")
    for mesh, slots, travels in (
        (Mesh(tp=8, etp=8), (1, 256), False),
        (Mesh(tp=8, ep=8), (8, 32), False),
        (Mesh(dp_shard=8, ep=8), (8, 32), True),
        (Mesh(dp_shard=4, tp=2, ep=8), (8, 32), True),
        (Mesh(dp_shard=8), (1, 256), False),
    ):
        popularity = np.full((58, *slots), 1 / 256)
        deployment = Deployment(model, NODE, mesh, popularity=popularity)
        parts = IterationPricer(deployment).price(Iteration((), (1000,) * 8)).parts
        assert deployment.exchanges == travels
        assert (parts.exchange_s > 0) == travels
        assert (parts.tensor_parallel_s > 0) == (mesh.tp > 1)


def test_experts_split_by_width_with_rows_that_travel_are_refused() -> None:
    model = read_architecture(MODELS / "deepseek-v3.json")
    with pytest.raises(ValueError, match=r"etp\(2\) with ep\(4\) .* nearest: ep 8 with etp 1"):
        Deployment(model, NODE, Mesh(dp_shard=8, ep=4, etp=2), popularity=np.full((58, 4, 64), 1 / 256))


def test_every_rank_holds_the_logits_of_all_columns() -> None:
    model = read_architecture(MODELS / "llama-3.1-8b.json")
    memory = rank_memory(Deployment(model, NODE, Mesh(tp=8), most_tokens=1024, most_sequences=1024), 0)
    # Behind the stream, twice: 128,256 columns in bf16 and fp32.
    assert memory.activation_bytes == 2 * 2 * 1024 * 4096 + 6 * 128_256 * 1024


def test_python_launches_a_prompt_more_slowly_than_compiled_code_does() -> None:
    model = read_architecture(MODELS / "llama-3.1-8b.json")
    prompt, decoding = Iteration((Chunk(16),)), Iteration((), (100,) * 4)
    compiled, fused = (
        IterationPricer(Deployment(model, NODE, Mesh(), prefill_code=code)).price for code in ("compiled", "fused")
    )
    # 325 launches of 48 us are 15.6 ms, more than the device takes; of 9.85 us they would be 3.2 ms, which is less.
    assert 15.6e-3 < fused(prompt).latency_s < 16e-3
    assert 5e-3 < compiled(prompt).latency_s < 6e-3
    # What decodes is captured.
    assert fused(decoding) == compiled(decoding)

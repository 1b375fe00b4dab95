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

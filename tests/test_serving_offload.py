"""What comes up from below the card for an iteration: bytes and times by hand, on one H200 of its node."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.forecast.serving.plan import Limits
from simulator.forecast.serving.pool import Pool
from simulator.hardware.cluster import Cluster
from simulator.hardware.figure import Figure
from simulator.hardware.library import build_cluster
from simulator.model.config import read_architecture
from simulator.model.serving.held import CacheNeed
from simulator.parallel.mesh import Mesh
from simulator.program.serving.below import BelowTheCard, cold, hot
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Chunk, Iteration, Price
from simulator.program.serving.memory import RankMemory, rank_memory
from simulator.program.serving.offload import Reads, ServingOffload
from simulator.program.serving.pricer import IterationPricer
from simulator.shipped import shipped

MODELS = shipped("scenarios", "models")
LLAMA, MIXTURE = (read_architecture(MODELS / f"{name}.json") for name in ("llama-3.1-8b", "qwen3-30b-a3b"))
CARD = build_cluster("hgx-h200", "single-node", 1, Path())
LAYER = 2 * 218_112_000
"""Bytes of a layer of Llama 3.1 8B: 4096 x (6144 + 4096 + 3 x 14336) and two norms."""
EXPERT = 2 * 3 * 2048 * 768
IN, OUT, LATENCY = 55.43e9, 55.06e9, 6e-6
SIXTEEN = Iteration(decode_contexts=(1024,) * 16)


def llama(offload: ServingOffload, iteration: Iteration = SIXTEEN) -> tuple[Price, RankMemory]:
    deployment = Deployment(LLAMA, CARD, Mesh(), offload=offload)
    return IterationPricer(deployment).price(iteration), rank_memory(deployment, 0)


def mixture(offload: ServingOffload, popularity: np.ndarray | None = None, cluster: Cluster = CARD) -> Deployment:
    even = np.full((48, 1, 128), 1 / 128) if popularity is None else popularity
    return Deployment(MIXTURE, cluster, Mesh(), popularity=even, offload=offload)


def test_weights_that_stream_take_what_their_link_takes() -> None:
    price, memory = llama(ServingOffload(weights=1.0))
    # 32 layers of nine tensors each; what the ends compute is hidden: the next layers come meanwhile.
    layer_bytes = memory.host["weights"] / 32
    assert layer_bytes == pytest.approx(LAYER, rel=1e-4)
    assert price.latency_s == pytest.approx(32 * (layer_bytes / IN + 9 * LATENCY), rel=1e-6)
    assert price.parts.host_s == pytest.approx(price.latency_s - llama(ServingOffload())[0].latency_s)
    assert sum(price.grades.values()) == pytest.approx(price.latency_s)


def test_a_layer_in_two_streams_half_as_long() -> None:
    price, memory = llama(ServingOffload(weights=0.5))
    assert price.latency_s == pytest.approx(16 * (LAYER / IN + 9 * LATENCY), rel=1e-3)
    assert memory.weights["weights"] == memory.host["weights"] == pytest.approx(16 * LAYER, rel=1e-4)
    assert memory.weights["buffers of layers"] == pytest.approx(2 * LAYER, rel=1e-4)


def test_a_large_batch_hides_what_streams() -> None:
    # 16,384 tokens through a layer are 7.1e12 FLOPs, some 9 ms; its weights come in 7.9 ms.
    prompts = Iteration((Chunk(16_384),))
    price, _ = llama(ServingOffload(weights=1.0), prompts)
    assert price.latency_s == pytest.approx(llama(ServingOffload(), prompts)[0].latency_s, rel=1e-3)


def test_drives_stream_at_their_own_rate() -> None:
    # Eight drives read 55.6 GB/s together, and the card takes 55.43.
    direct, memory = llama(ServingOffload(weights=1.0, reads=Reads(True, 2**20, 256)))
    assert direct.latency_s == pytest.approx(32 * (LAYER / IN + 100e-6), rel=1e-3)
    assert (memory.drives_bytes, memory.host) == (pytest.approx(32 * LAYER, rel=1e-4), {})
    _, staged = llama(ServingOffload(weights=1.0, reads=Reads(False, 2**20, 256)))
    assert staged.host == {"buffers of layers": pytest.approx(2 * LAYER, rel=1e-4)}
    # One block of 1 MiB at a time: latency, and its time on one of the drives.
    slow, _ = llama(ServingOffload(weights=1.0, reads=Reads(True, 2**20, 1)))
    assert slow.latency_s == pytest.approx(32 * LAYER / 2**20 * (100e-6 + 2**20 / 6.95e9), rel=1e-2)


def test_caches_of_half_of_the_layers_come_in() -> None:
    price, memory = llama(ServingOffload(cache=0.5))
    # Sixteen layers, sixteen sequences of 1,023 tokens, 4,096 bytes each; computing 6.07 ms is mostly hidden.
    moved_s = 16 * (16 * 1023 * 4096 / IN + LATENCY)
    assert price.latency_s == pytest.approx(moved_s, rel=1e-2)
    assert memory.host_cache.bytes_of(1) == 16 * 4096
    assert memory.cache.bytes_of(1) == (16 + 2) * 4096


def test_a_prompt_s_new_keys_go_out() -> None:
    below = BelowTheCard(Deployment(LLAMA, CARD, Mesh(), offload=ServingOffload(cache=1.0)))
    found = below.of(LLAMA.layers[0], Iteration((Chunk(1000),)))
    assert found.cache is None
    assert found.written is not None
    assert int(found.written.duration_ns[0]) == pytest.approx(1e9 * (1000 * 4096 / OUT + LATENCY), rel=1e-4)


def test_chosen_experts_come_when_they_are_chosen() -> None:
    iteration, found = Iteration(decode_contexts=(512,)), {}
    for share in (0.0, 0.5, 1.0):
        deployment = mixture(ServingOffload(experts="fetched", on_card=share))
        found[share] = IterationPricer(deployment).price(iteration)
    # One token chooses eight of 128, two tensors each, or four where half of them are there.
    assert found[0.0].parts.host_s == pytest.approx(48 * 8 * (EXPERT / IN + 2 * LATENCY), rel=1e-2)
    assert found[0.5].parts.host_s == pytest.approx(48 * 4 * (EXPERT / IN + 2 * LATENCY), rel=1e-2)
    assert found[1.0].parts.host_s == 0.0


def test_the_most_popular_experts_stay() -> None:
    layer = np.array([[0.1, 0.4, 0.2, 0.3]])
    assert hot(layer, 0.5).tolist() == [[0.4, 0.3]]
    assert cold(layer, 0.5).tolist() == [[0.2, 0.1]]
    skewed = np.full((48, 1, 128), 0.2 / 96)
    skewed[:, :, :32] = 0.8 / 32
    misses = {}
    for name, popularity in (("even", None), ("skewed", skewed)):
        below = BelowTheCard(mixture(ServingOffload(experts="fetched", on_card=0.25), popularity))
        misses[name] = below.of(MIXTURE.layers[0], Iteration(decode_contexts=(512,))).chosen
    # 8 x 96 / 128 = 6 experts of an even router, 8 x 0.2 = 1.6 of the skewed one.
    bytes_of = {name: float(move.collective.wire_bytes) for name, move in misses.items()}  # type: ignore[union-attr]
    assert bytes_of == {"even": pytest.approx(6 * EXPERT), "skewed": pytest.approx(1.6 * EXPERT)}


def amx() -> Cluster:
    rate = Figure(value=20e12, source="made up", grade="assumed")
    cpu = CARD.node.cpu.model_copy(update={"flops_per_s": {"bf16": rate}})
    return replace(CARD, node=CARD.node.model_copy(update={"cpu": cpu}))


def test_cores_read_the_weights_of_chosen_experts_or_multiply() -> None:
    below = BelowTheCard(mixture(ServingOffload(experts="cores", threads=96), cluster=amx()))
    one = below.of(MIXTURE.layers[0], Iteration(decode_contexts=(512,))).cores
    many = below.of(MIXTURE.layers[0], Iteration((Chunk(8192),))).cores
    assert one is not None
    assert many is not None
    # Eight experts at 614 x 0.8 GB/s; 8,192 x 8 rows through 4.7 million weights at 20 TFLOP/s.
    assert int(one[1].duration_ns[0]) == pytest.approx(1e9 * 8 * EXPERT / 491.2e9, rel=1e-3)
    assert int(many[1].duration_ns[0]) == pytest.approx(1e9 * 8192 * 8 * EXPERT / 20e12, rel=1e-3)
    # Hidden states of a token there and back.
    assert [int(move.duration_ns[0]) for move in (one[0], one[2])] == [6075, 6074]


def test_an_iteration_waits_for_cores_beside_what_the_card_computes() -> None:
    iteration = Iteration(decode_contexts=(512,))
    deployment = mixture(ServingOffload(experts="cores", threads=96), cluster=amx())
    price = IterationPricer(deployment).price(iteration)
    cores_s = 8 * EXPERT / 491.2e9 + 12.15e-6
    assert price.parts.experts_s == 0.0
    assert 0.8 * 48 * cores_s < price.parts.host_s < 48 * cores_s
    kept = replace(deployment, offload=replace(deployment.offload, on_card=1.0))
    assert IterationPricer(kept).price(iteration).parts.host_s < 48 * 13e-6


def test_experts_that_cores_have_are_not_on_the_card() -> None:
    memory = rank_memory(mixture(ServingOffload(experts="cores", on_card=0.25)), 0)
    assert memory.weights["experts"] == 48 * 32 * EXPERT
    assert memory.host == {"experts": 48 * 96 * EXPERT}
    fetched = rank_memory(mixture(ServingOffload(experts="fetched", on_card=0.25)), 0)
    assert fetched.host == {"experts": 48 * 128 * EXPERT}
    # An iteration of 8,192 tokens chooses all 96 others of a layer.
    assert fetched.weights["buffers of layers"] == pytest.approx(96 * EXPERT)


def test_experts_that_the_card_holds_stay_where_other_weights_stream() -> None:
    memory = rank_memory(mixture(ServingOffload(weights=1.0, experts="fetched", on_card=0.25)), 0)
    # Queries and outputs of 4,096, keys and values of 512, norms of two hidden states and two heads, a router of 128.
    others = 2 * (2048 * (2 * 4096 + 2 * 512) + 2 * 2048 + 2 * 128 + 2048 * 128)
    assert memory.weights["experts"] == 48 * 32 * EXPERT
    assert "weights" not in memory.weights
    assert memory.host == {"experts": 48 * 128 * EXPERT, "weights": 48 * others}
    assert memory.weights["buffers of layers"] == pytest.approx(2 * others + 96 * EXPERT)


def test_tensors_of_experts_that_stay_are_not_copied() -> None:
    below = BelowTheCard(mixture(ServingOffload(weights=1.0, experts="fetched", on_card=1.0)))
    found = below.of(MIXTURE.layers[0], Iteration(decode_contexts=(512,)))
    others = 2 * (2048 * (2 * 4096 + 2 * 512) + 2 * 2048 + 2 * 128 + 2048 * 128)
    assert (found.chosen, found.weights is None) == (None, False)
    # Four projections, four norms and a router.
    assert int(found.weights.duration_ns[0]) == pytest.approx(  # type: ignore[union-attr]
        1e9 * (others / IN + 9 * LATENCY), rel=1e-4
    )


def windowed() -> Deployment:
    """Llama 3.1 8B whose even layers forget what lies more than 128 tokens back; all caches in host memory."""
    layers = [
        layer if layer.index % 2 else replace(layer, mixer=replace(layer.mixer, window=128))  # type: ignore[type-var]
        for layer in LLAMA.layers
    ]
    model = replace(LLAMA, layers=tuple(layers))
    return Deployment(model, CARD, Mesh(), longest_tokens=1000, offload=ServingOffload(cache=1.0))


def test_buffers_of_caches_hold_the_largest_of_any_layer() -> None:
    memory = rank_memory(windowed(), 0)
    assert memory.cache == CacheNeed(token_bytes=2 * 4096)
    assert memory.host_cache == CacheNeed(token_bytes=16 * 4096, windows=((128, 16 * 4096),))


def test_host_memory_bounds_caches_with_windows() -> None:
    deployment = windowed()
    pool = Pool(deployment, rank_memory(deployment, 0), 1e12, 16, Limits(8, 8192, mixed=True))
    # Of a sequence of 1,000 tokens: 16 layers of them and 16 of 128 in 1,536 GB, and buffers for two of all.
    assert pool.cache_bytes == pytest.approx(1.536e12 / (16 * 1128) * 2000)
    assert pool.has_room

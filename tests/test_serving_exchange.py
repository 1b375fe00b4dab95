"""Exchanges of rows are priced at powers of two of a rank's tokens; between them they take what the network says."""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.model.config import read_architecture
from simulator.parallel.mesh import Mesh
from simulator.program.exchanges import exchanges
from simulator.program.expert_load import wire_rows
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.expert_rows import expert_rows
from simulator.program.serving.iteration import Iteration
from simulator.program.serving.layer_steps import LayerSteps
from simulator.shipped import shipped

MODEL = read_architecture(shipped("scenarios", "models", "deepseek-v3.json"))
CLUSTER = build_cluster("hgx-h100", "rail-fat-tree-400g", 16, Path())


@pytest.mark.parametrize("way", ["low_latency", "hierarchical"])
@pytest.mark.parametrize("tokens", [12, 100, 384])
def test_time_between_powers_of_two_is_the_networks(way, tokens):
    popularity = np.full((58, 16, 16), 1 / 256)
    deployment = Deployment(MODEL, CLUSTER, Mesh(dp_shard=16, ep=16), decode_exchange=way, popularity=popularity)
    layers = LayerSteps(deployment)
    *_, last = layers.of_stage(0, Iteration((), (9,) * tokens), graph=True)
    found = [step.seconds for step in last if step.part == "exchange_s"]
    part = MODEL.layers[-1].feed_forward
    domain = CLUSTER.scale_up_domain
    wire = wire_rows(popularity[0] * 16 * tokens * 8, deployment.mesh, way, deployment.choice(part), domain)
    transfer = layers.network.exchange(wire * 7168 * 2, exchanges()[way])
    assert found[-1] == pytest.approx(transfer.duration_ns.max() / 1e9, rel=0.04)


def test_few_tokens_leave_experts_without_rows():
    load = expert_rows(np.full((1, 2, 4), 1 / 8), tokens=1, top_k=2)
    # One token chooses 2 of 8: each is chosen with a chance of a quarter.
    assert load.touched == pytest.approx(np.full((1, 2, 4), 0.25))
    assert load.of_ranks == pytest.approx(np.full((1, 2), 1.0))
    many = expert_rows(np.full((1, 2, 4), 1 / 8), tokens=3, top_k=2)
    assert many.touched == pytest.approx(np.full((1, 2, 4), 1 - 0.75**3))


def test_an_expert_that_all_tokens_choose_is_always_there():
    load = expert_rows(np.array([[[0.5, 0.5, 0.0, 0.0]]]), tokens=5, top_k=2)
    assert load.touched[0, 0] == pytest.approx([1, 1, 0, 0])

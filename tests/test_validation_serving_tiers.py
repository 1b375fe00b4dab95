"""Published rows of serving from drives and of experts on the host's cores, beside what their sources state.

ZeRO-Inference: DeepSpeed blogs/deepnvme/06-2025 (@edaa722), Llama 3 70B in bf16, one card, 96 prompts of 512 tokens and
32 of an answer, GPUDirect Storage. KTransformers: doc/en/DeepseekR1_V3_tutorial.md (@95009ea), DeepSeek-V3 on an RTX
4090 beside two Xeon Gold 6454S; popularity of experts is not stated and taken to be even.
"""

from pathlib import Path

import numpy as np
import pytest

from simulator.hardware.library import build_cluster
from simulator.model.architecture import Architecture
from simulator.model.config import read_architecture
from simulator.model.serving.formats import FORMATS, Formats
from simulator.parallel.mesh import Mesh
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Chunk, Iteration
from simulator.program.serving.offload import Reads, ServingOffload
from simulator.program.serving.pricer import IterationPricer
from simulator.shipped import shipped


def model(name: str) -> Architecture:
    return read_architecture(shipped("scenarios", "models") / f"{name}.json")


@pytest.mark.parametrize(("node", "measured", "error"), [("hgx-a100", 7.0, -0.094), ("hgx-h200", 26.0, 0.370)])
def test_weights_from_drives(node: str, measured: float, error: float) -> None:
    deployment = Deployment(
        model("llama-3.1-70b"),
        build_cluster(node, "single-node", 1, Path()),
        Mesh(),
        cuda_graphs=False,
        offload=ServingOffload(weights=1.0, reads=Reads(True, 2**20, 128)),
    )
    price = IterationPricer(deployment).price
    first = price(Iteration((Chunk(512),) * 96)).latency_s
    later = price(Iteration(decode_contexts=(528,) * 96)).latency_s
    assert 96 * 32 / (first + 31 * later) / measured - 1 == pytest.approx(error, abs=0.01)


@pytest.mark.parametrize(
    ("experts", "iteration", "measured", "error"),
    [
        ("int4", Iteration(decode_contexts=(500,)), 12.208, 0.784),
        ("int8", Iteration((Chunk(2048),)), 255.26, 1.542),
        ("int8", Iteration((Chunk(8192),)), 195.62, 2.055),
    ],
)
def test_experts_on_cores(experts: str, iteration: Iteration, measured: float, error: float) -> None:
    deployment = Deployment(
        model("deepseek-v3"),
        build_cluster("rtx-4090-two-xeon-6454s", "single-node", 1, Path()),
        Mesh(),
        Formats(FORMATS["int4"], FORMATS[experts]),
        popularity=np.full((58, 1, 256), 1 / 256),
        offload=ServingOffload(experts="cores", threads=64),
    )
    tokens_per_s = iteration.tokens / IterationPricer(deployment).price(iteration).latency_s
    assert tokens_per_s / measured - 1 == pytest.approx(error, abs=0.03)

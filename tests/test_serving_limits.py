from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.forecast.reading import open_any_scenario
from simulator.forecast.scenario_serving import ServingScenario
from simulator.forecast.serving.assembly import deploy
from simulator.forecast.serving.engine import Row
from simulator.forecast.serving.limits import limits
from simulator.forecast.serving.pricing import FIGURES, IterationPrices, Load
from simulator.forecast.serving.requests import requests
from simulator.program.serving.pricer import IterationPricer

DENSE = """\
name: dense
model: llama-3.1-8b
cluster: {node: hgx-h200, fabric: single-node, accelerators: 1}
serving:
  requests: {prompt_tokens: 900, output_tokens: 60, concurrency: 8, count: 24}
"""
ATTENTION = FIGURES.index("attention_s")


def test_attention_is_reading_caches_as_long_as_decoding_takes_by_itself(tmp_path: Path) -> None:
    (tmp_path / "dense.yaml").write_text(DENSE)
    document, _ = open_any_scenario(str(tmp_path / "dense.yaml"), ())
    assert isinstance(document.content, ServingScenario)
    wanted = requests(document.content.serving.requests, tmp_path)
    (pool,) = deploy(document.content, tmp_path, wanted)
    prices = IterationPrices(IterationPricer(pool.deployment).price)
    figures = np.zeros(len(FIGURES))
    # Nothing but attention, four times what the eight sequences that decode take.
    figures[ATTENTION] = 4 * prices.of(Load((), 8, 8 * 1000.0))[ATTENTION]
    row = Row(0, 1000, 1, 8, 8 * 1000.0, 1, 9, 0, 0, 1, figures)
    for asked, cache in ((row, 0.25), (replace(row, decoding=0), 0.0), (replace(row, prompt_tokens=0), 1.0)):
        found = limits(pool, prices, [asked], 2000)
        assert found["cache"] == pytest.approx(cache / 2)
        assert found["arithmetic"] == pytest.approx((1 - cache) / 2)
        assert found["idle"] == pytest.approx(0.5)

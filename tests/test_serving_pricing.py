from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.forecast.serving.pricing import PARTS, IterationPrices, Load, around, captured, near
from simulator.hardware.library import build_cluster
from simulator.model.config import read_architecture
from simulator.parallel.mesh import Mesh
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Chunk, Iteration, Parts, Price
from simulator.program.serving.pricer import IterationPricer
from simulator.shipped import shipped


@cache
def _pricer() -> IterationPricer:
    model = read_architecture(shipped("scenarios", "models", "llama-3.1-8b.json"))
    return IterationPricer(Deployment(model, build_cluster("hgx-h200", "single-node", 8, Path()), Mesh()))


def _linear(iteration: Iteration) -> Price:
    """Attention a microsecond a token of context, products one a token, experts one a token."""
    contexts = sum(iteration.decode_contexts) + sum(chunk.pairs for chunk in iteration.prefill)
    tokens = iteration.tokens
    parts = Parts(attention_s=1e-6 * contexts, dense_s=1e-6 * tokens, experts_s=1e-6 * tokens)
    return Price(parts, parts.total_s, {"measured": parts.total_s})


def test_small_numbers_are_on_the_grid() -> None:
    assert [around(value) for value in (1, 7, 16, 16.5)] == [(1, 1), (7, 7), (16, 16), (16, 19)]
    assert [near(value) for value in (0, 3, 17.4, 18, 100)] == [0, 3, 16, 19, 108]


@given(st.floats(1, 1e7))
def test_points_of_the_grid_lie_around_every_number(value: float) -> None:
    low, high = around(value)
    assert low <= value <= high or value < 16
    assert high / low < 1.26 or value < 16


def test_sequences_are_padded_to_what_was_captured() -> None:
    assert [captured(count) for count in (1, 2, 3, 5, 8, 129, 256, 257)] == [1, 2, 4, 8, 8, 136, 256, 272]


@given(st.integers(1, 500), st.floats(1, 100_000))
@settings(max_examples=50, deadline=None)
def test_contexts_keep_their_sum(sequences: int, context: float) -> None:
    figures = IterationPrices(_linear).of(Load((), sequences, sequences * context))
    padded = captured(sequences)
    assert figures[PARTS.index("attention_s")] == pytest.approx(1e-6 * max(sequences * context, padded), rel=1e-3)
    assert figures[PARTS.index("dense_s")] == pytest.approx(1e-6 * padded)


def test_without_graphs_nothing_is_padded() -> None:
    asked: list[int] = []

    def price(iteration: Iteration) -> Price:
        asked.append(len(iteration.decode_contexts))
        return _linear(iteration)

    for graphs in (True, False):
        IterationPrices(price, graphs=graphs).of(Load((), 9, 9 * 16.0))
    assert asked == [16, 9]


def test_chunks_keep_their_tokens_and_pairs() -> None:
    # 100 x 50 + 100 x 101 / 2 + 300 x 301 / 2 pairs; the mean context of the chunks is rounded to the grid.
    figures = IterationPrices(_linear).of(Load(((100, 50), (300, 0))))
    assert figures[PARTS.index("dense_s")] == pytest.approx(400e-6)
    assert figures[PARTS.index("attention_s")] == pytest.approx(55_200e-6, rel=0.05)


def test_ranks_in_step_wait_for_the_slowest_and_share_experts() -> None:
    prices = IterationPrices(_linear)
    few, many = Load((), 8, 8000.0), Load((), 24, 36_000.0)
    figures = prices.together([few, many])
    assert figures[PARTS.index("attention_s")] == pytest.approx(36_000e-6)
    assert figures[PARTS.index("experts_s")] == pytest.approx(16e-6)
    assert prices.together([many, many])[PARTS.index("experts_s")] == pytest.approx(24e-6)


def test_ranks_that_bring_nothing_to_experts_count_too() -> None:
    def price(iteration: Iteration) -> Price:
        return Price(Parts(attention_s=1.0, experts_s=1e-6 * iteration.brought), 2.0, {})

    prices = IterationPrices(price)
    one, none = Load((), 1, 500.0), Load()
    experts = PARTS.index("experts_s")
    # One of eight ranks decodes a sequence; then another one two.
    assert prices.together([one] + [none] * 7)[experts] == pytest.approx(1e-6 / 8)
    assert prices.together([one, Load((), 2, 800.0)] + [none] * 6)[experts] == pytest.approx(3e-6 / 8)
    # Five are padded to eight, but not beside prompts, here of 100: 8 + 1 and 100 + 5 + 1 tokens on two ranks.
    assert prices.together([Load((), 5, 500.0), one])[experts] == pytest.approx(4.5e-6)
    assert prices.together([Load(((100, 0),), 5, 500.0), one])[experts] == pytest.approx(53e-6)


def test_batches_of_a_pipeline_take_turns() -> None:
    figures = IterationPrices(_linear).of(Load((), 1, 9.0))
    # 11 us through all stages; the slowest one takes as long here, so four batches take 44.
    assert IterationPrices(_linear, 1).duration_ns(figures) == 11_000
    assert IterationPrices(_linear, 4).duration_ns(figures) == 44_000


@given(st.integers(1, 256), st.integers(1, 30_000))
@settings(max_examples=10, deadline=None)
def test_decoding_is_priced_as_the_padded_iteration(sequences: int, context: int) -> None:
    padded = captured(sequences)
    exact = _pricer().price(Iteration(decode_contexts=(context,) * padded)).latency_s
    found = IterationPrices(_pricer().price).of(Load((), sequences, float(padded * context)))
    assert float(np.sum(found[: len(PARTS)])) == pytest.approx(exact, rel=0.01)


@given(st.integers(64, 8192), st.integers(0, 20_000), st.integers(0, 128))
@settings(max_examples=10, deadline=None)
def test_prompts_are_priced_within_eight_per_cent(tokens: int, cached: int, decoding: int) -> None:
    exact = _pricer().price(Iteration((Chunk(tokens, cached),), (2000,) * decoding)).latency_s
    load = Load(((tokens, cached),), decoding, 2000.0 * decoding)
    found = IterationPrices(_pricer().price).of(load)
    assert float(np.sum(found[: len(PARTS)])) == pytest.approx(exact, rel=0.08)


def test_a_host_that_began_before_the_device_was_free_has_it_wait_for_so_much_less() -> None:
    def launched(iteration: Iteration) -> Price:
        parts = Parts(dense_s=0.030, launch_bound_s=0.040 if iteration.prefill else 0.0)
        return Price(parts, parts.total_s, {"measured": 0.030})

    prices = IterationPrices(launched)
    prompt = prices.of(Load(((16, 0),)))
    assert prices.duration_ns(prices.led(prompt, 0.010)) == 60_000_000
    # No more than the waiting, and nothing where nobody waits.
    assert prices.duration_ns(prices.led(prompt, 0.100)) == 30_000_000
    decoding = prices.of(Load((), 1, 1.0))
    assert prices.led(decoding, 0.010) is decoding


def test_stages_of_a_pipeline_share_what_a_host_has_launched_ahead() -> None:
    def launched(iteration: Iteration) -> Price:
        # Four stages of 10 ms each, of which the device waits 4 ms for launches.
        return Price(Parts(dense_s=0.024, launch_bound_s=0.016), 0.010, {"measured": 0.024})

    prices = IterationPrices(launched, 4)
    assert prices.duration_ns(prices.led(prices.of(Load(((16, 0),))), 0.008)) == 32_000_000

"""Caches that come back from host memory and drives, on engines whose iterations take a millisecond."""

import numpy as np
import pytest
from serving_engines import Small, ms

from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.lower_tiers import LowerTiers, Tier, waited_s
from simulator.forecast.serving.prefix_cache import PrefixCache
from simulator.forecast.serving.pricing import FIGURES, IterationPrices, Load
from simulator.program.serving.iteration import Iteration, Parts, Price


def tiers(host: float, drives: float = 0.0) -> LowerTiers:
    """Host memory that sends 1,000 bytes a second, drives 100."""
    return LowerTiers((Tier("ddr", host, lambda size: size / 1000), Tier("nvme", drives, lambda size: size / 100)))


def test_what_was_used_first_goes_down_first_and_is_forgotten_last_of_all() -> None:
    found = tiers(20, 10)
    for key in "abcd":
        found.put(key, 10)
    assert [found.holds(key) for key in "abcd"] == [False, True, True, True]
    assert [found.take(key) for key in "bcd"] == [0.1, 0.01, 0.01]
    assert found.peak_bytes == {"ddr": 20, "nvme": 10}
    assert not any(found.holds(key) for key in "abcd")


def test_what_is_larger_than_a_tier_goes_further_down() -> None:
    found = tiers(5, 10)
    found.put("a", 10)
    assert found.take("a") == 0.1


def test_layers_are_computed_while_the_next_come_up() -> None:
    # Ten layers: the first comes up in 1 ms, the others beside 2 ms of work each.
    assert waited_s(0.010, 0.020, 10) == pytest.approx(0.001)
    # 3 ms each beside 2 ms of work: 3 + 9 x 1.
    assert waited_s(0.030, 0.020, 10) == pytest.approx(0.012)
    assert waited_s(0.0, 0.020, 10) == 0.0


def test_a_sequence_that_was_sent_back_comes_back_with_its_cache() -> None:
    ends = {}
    for kept in (False, True):
        engines = Small(tokens=200, max_batch_tokens=50)
        if kept:
            engines.ranks[0].tiers = tiers(1000)
        sequences = engines.run((80, 60), (80, 60))
        assert engines.ranks[0].preemptions == 1
        ends[kept] = ms(*(one.end_ns for one in sequences))
    # The second had 99 tokens when blocks ran out, and 50 tokens of a prompt take an iteration.
    assert ends[False][0] == ends[True][0]
    assert ends[True][1] < ends[False][1]


def test_a_sequence_that_was_forgotten_computes_its_cache_again() -> None:
    ends = {}
    for host in (0, 1000):
        engines = Small(tokens=200, max_batch_tokens=50)
        engines.ranks[0].tiers = tiers(host)
        first, second = engines.submit(80, 60), engines.submit(80, 60)
        engines.env.run(until=0.02e9)
        engines.ranks[0].tiers.forget(second)
        engines.env.run()
        ends[host] = ms(first.end_ns, second.end_ns)
    assert ends[0][0] == ends[1000][0]
    assert ends[0][1] >= ends[1000][1]


def test_a_prompt_finds_in_host_memory_what_the_card_forgot() -> None:
    below = tiers(10_000)
    engines = Small(tokens=1024, prefixes=lambda pool: PrefixCache(pool, below), max_batch_tokens=512, block_tokens=8)
    rank = engines.ranks[0]
    rank.tiers = below
    for hashes in ((1, 2), (3, 4), (1, 2)):
        engines.submit(1023, 1, hash_ids=hashes)
        engines.env.run()
    assert rank.found_tokens == 512
    assert below.peak_bytes["ddr"] > 0


def test_an_iteration_waits_for_caches_that_come_up() -> None:
    def price(iteration: Iteration) -> Price:
        return Price(Parts(dense_s=0.001 * iteration.tokens), 0.001 * iteration.tokens, {"measured": 0.001})

    prices = IterationPrices(price, 1, 4, "scaled")
    alone, waiting = (prices.together([Load(((8, 0),), loaded_s=seconds)]) for seconds in (0.0, 0.016))
    # Four layers of 2 ms of work and 4 ms on the way each: 4 + 3 x 2.
    added = dict(zip(FIGURES, waiting - alone, strict=True))
    assert [added[name] for name in ("host_s", "interval_s", "scaled")] == pytest.approx([0.010] * 3)
    assert np.count_nonzero(waiting - alone) == 3


def test_pools_of_caches_say_how_much_a_sequence_takes() -> None:
    pool = CachePool(100, 1.0, lambda _: 5.0, 10)
    assert pool.need_bytes(pool.blocks(25), 25) == 35

from serving_engines import Small, ms

from simulator.forecast.serving.cache_pool import CachePool
from simulator.forecast.serving.prefix_cache import PrefixCache


def _pool(tokens: int) -> CachePool:
    return CachePool(tokens, 1.0, lambda _: 0.0, 8)


def test_a_prompt_finds_what_it_begins_with() -> None:
    cache = PrefixCache(_pool(10_000))
    cache.add((1, 2, 3))
    assert cache.found((1, 2, 9, 3)) == (1, 2)
    assert cache.found((2,)) == (2,)
    assert cache.found((9, 1)) == ()


def test_blocks_that_nobody_holds_stay_while_there_is_room() -> None:
    pool = _pool(3 * 512)
    cache = PrefixCache(pool)
    pool.take(3 * 64)
    cache.add((1, 2, 3))
    cache.let_go((1, 2, 3))
    assert pool.used_bytes == 0
    pool.take(64)
    cache.make_room()
    # One hash stands for 64 blocks of 8 tokens; the end of the prompt goes first.
    assert cache.found((1, 2, 3)) == (1, 2)


def test_a_block_is_held_once_by_all_that_share_it() -> None:
    pool = _pool(10_000)
    cache = PrefixCache(pool)
    pool.take(64)
    cache.add((1,))
    cache.hold((1,))
    assert pool.used_bytes == 512
    cache.let_go((1,))
    assert pool.used_bytes == 512
    cache.let_go((1,))
    assert pool.used_bytes == 0


def test_turns_of_a_chat_share_their_beginning() -> None:
    engines = Small(tokens=10_240, prefixes=PrefixCache, max_batch_tokens=512, block_tokens=8)
    first = engines.submit(1024, 1, hash_ids=(1, 2))
    engines.env.run()
    second = engines.submit(1536, 1, hash_ids=(1, 2, 3))
    engines.env.run()
    # Two chunks of 512 for the first; of the second, 512 tokens are new.
    assert ms(first.end_ns, second.end_ns) == (2, 3)
    assert engines.ranks[0].found_tokens == 1024
    assert engines.ranks[0].pool.used_bytes == 0


def test_what_was_sent_back_is_not_found_again() -> None:
    # 137 blocks of 8 tokens: 64 each for the prompts, and 9 for answers.
    engines = Small(tokens=1096, prefixes=PrefixCache, max_batch_tokens=1024, block_tokens=8)
    first, second = (engines.submit(512, 50, hash_ids=(name,)) for name in (1, 2))
    engines.env.run()
    assert (first.preemptions, second.preemptions) == (0, 1)
    # Each takes four blocks; a fifth for both is one too many when the second has made 33 tokens, computed again later.
    assert [row.prompt_tokens for row in engines.rows if row.prompt_tokens] == [1024, 33]
    assert engines.ranks[0].found_tokens == 0

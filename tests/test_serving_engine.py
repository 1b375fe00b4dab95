import numpy as np
import pytest
from serving_engines import MILLISECOND, Small, Steady, ms

from simulator.forecast.serving.pricing import FIGURES


def test_a_prompt_makes_the_first_token_and_each_iteration_one_more() -> None:
    small = Small()
    (one,) = small.run((50, 10))
    # One iteration computes the prompt, nine decode.
    assert ms(one.first_ns, one.end_ns) == (1, 10)


def test_a_long_prompt_goes_in_chunks_of_what_an_iteration_takes() -> None:
    (one,) = Small().run((250, 1))
    assert ms(one.first_ns, one.end_ns) == (3, 3)


def test_chunks_have_what_decoding_sequences_leave() -> None:
    small = Small()
    first, second = small.run((100, 5), (196, 2))
    # The second prompt waits for the first, then has 99 tokens an iteration beside it: 99 + 97.
    assert ms(first.first_ns, second.first_ns) == (1, 3)
    assert [row.prompt_tokens for row in small.rows] == [100, 99, 97, 0, 0]
    # In the fourth iteration both decode; the first has its fifth token in the fifth.
    assert ms(second.end_ns, first.end_ns) == (4, 5)


def test_prompts_alone_hold_up_those_that_decode() -> None:
    small = Small(mixed=False)
    first, second = small.run((100, 5), (196, 2))
    assert [row.prompt_tokens for row in small.rows] == [100, 100, 96, 0, 0]
    assert ms(first.first_ns, second.first_ns) == (1, 3)
    # The first decodes nothing while the second's prompt is computed: four further tokens from 3 ms on.
    assert ms(second.end_ns, first.end_ns) == (4, 7)


def test_no_more_sequences_than_asked_for_run_at_once() -> None:
    sequences = Small(max_sequences=2).run((10, 4), (10, 4), (10, 4))
    assert [ms(one.end_ns)[0] for one in sequences] == [4, 4, 8]


def test_iterations_that_are_alike_are_one_event() -> None:
    small = Small(tokens=10_000)
    small.run((10, 101))
    assert [row.iterations for row in small.rows] == [1, 100]


def test_a_request_that_comes_while_others_decode_misses_the_iteration_that_is_made_up() -> None:
    small = Small(tokens=10_000)
    small.submit(10, 101)
    small.env.run(until=int(5.5 * MILLISECOND))
    late = small.submit(10, 1)
    small.env.run()
    # The iteration that ends at 7 ms is made up when it comes; the one after it has its prompt.
    assert ms(late.arrival_ns, late.first_ns) == (5.5, 8)
    assert [row.iterations for row in small.rows] == [1, 5, 1, 1, 93]


def test_an_engine_that_looks_seldom_hears_late() -> None:
    small = Small(tokens=10_000, receive_every=10)
    small.submit(10, 101)
    small.env.run(until=int(5.5 * MILLISECOND))
    late = small.submit(10, 1)
    small.env.run()
    # It looks after the first prompt, at 1 ms, and ten iterations later; one more is made up, and the prompt takes one.
    assert ms(late.first_ns) == (13,)


def test_ranks_in_step_share_requests_out_and_wait_for_each_other() -> None:
    small = Small(ranks=2)
    long, short = small.run((250, 1), (10, 1))
    assert ms(long.end_ns, short.end_ns) == (3, 1)
    assert [rank.running for rank in small.ranks] == [0, 0]


def test_a_sequence_waits_until_there_are_blocks_for_its_prompt() -> None:
    # 1,000 bytes are 100 blocks of 10 tokens: the second prompt of 60 blocks has to wait for the first.
    small = Small(max_batch_tokens=1000)
    first, second = small.run((600, 3), (600, 3))
    assert ms(first.end_ns, second.first_ns) == (3, 4)
    # In the first iteration, and in the row of two further ones.
    assert small.ranks[0].refusals == 3


def test_the_last_one_in_goes_back_when_decoding_finds_no_block() -> None:
    # 10 blocks; both prompts take 4 each, and each needs a new block every 10 tokens.
    small = Small(tokens=100)
    first, second = small.run((40, 50), (40, 50))
    assert small.ranks[0].preemptions == 1
    assert (first.preemptions, second.preemptions) == (0, 1)
    # Blocks 5 are taken by both at their first further token, 10 in all; the eleventh is missed after 10 of these, so
    # that the second has made 11 tokens when it goes back, and 40 + 11 are computed again once the first has ended.
    assert ms(first.end_ns) == (50,)
    assert ms(second.end_ns) == (51 + 38,)


def test_who_sets_aside_blocks_for_the_answer_sends_nobody_back() -> None:
    small = Small(tokens=100, reserves=True)
    first, second = small.run((40, 50), (40, 50))
    assert small.ranks[0].preemptions == 0
    assert ms(first.end_ns, second.first_ns, second.end_ns) == (50, 51, 100)


def test_all_room_is_given_back() -> None:
    small = Small(tokens=300, ranks=2)
    small.run(*[(prompt, 1 + prompt % 7) for prompt in range(20, 90, 3)])
    assert len(small.ended) == 24
    assert [rank.pool.used_bytes for rank in small.ranks] == [0, 0]


def test_a_row_of_iterations_holds_what_it_grows_to() -> None:
    small = Small(block_tokens=1)
    small.run((100, 257))
    # The prompt alone, and 256 further tokens, the last of which goes nowhere.
    assert [(row.iterations, row.used_bytes) for row in small.rows] == [(1, 100), (256, 356)]


class Launched(Steady):
    """Iterations take another millisecond that a host may launch ahead."""

    def __init__(self, replayed):
        self.replayed = replayed

    def together(self, loads):
        return np.ones(len(FIGURES))

    def led(self, figures, lead_s):
        return figures - 1 if lead_s else figures

    def duration_ns(self, figures):
        return MILLISECOND * round(1 + figures[0])


@pytest.mark.parametrize(("replayed", "late_ms"), [(True, 6), (False, 8)])
def test_a_host_launches_ahead_only_beside_what_is_replayed(replayed, late_ms):
    small = Small(tokens=10_000, pricing=Launched(replayed))
    small.submit(10, 101)
    small.env.run(until=int(2.5 * MILLISECOND))
    late = small.submit(10, 1)
    small.env.run()
    # A prompt takes two milliseconds, as does what decodes behind it. Late is the other prompt behind two iterations of
    # decoding, of which the second takes one millisecond where it was launched during the first, and so does it.
    assert ms(late.first_ns) == (late_ms,)

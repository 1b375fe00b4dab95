from serving_engines import MILLISECOND, Small, ms


def late_prompts(small: Small, *prompts: int) -> list[tuple[float, ...]]:
    """When prompts that come together at 5.5 ms, while a sequence decodes, have their first tokens."""
    small.submit(10, 101)
    small.env.run(until=int(5.5 * MILLISECOND))
    late = [small.submit(prompt, 1) for prompt in prompts]
    small.env.run()
    return [ms(one.first_ns) for one in late]


def test_prompts_wait_for_others_as_many_iterations_as_asked_for() -> None:
    small = Small(tokens=10_000, wait_iterations=20, wait_share=0.9)
    # Seen at 6 ms, they could be computed from 7 ms on; 20 iterations later they are.
    assert late_prompts(small, 10) == [(28,)]


def test_a_prompt_alone_waits_for_nobody() -> None:
    small = Small(tokens=10_000, wait_iterations=20)
    (one,) = small.run((10, 1))
    assert ms(one.first_ns) == (1,)


def test_enough_tokens_end_the_waiting() -> None:
    # 89 tokens and one that decodes are 0.9 of 100.
    assert late_prompts(Small(tokens=10_000, wait_iterations=20, wait_share=0.9), 89) == [(8,)]
    assert late_prompts(Small(tokens=10_000, wait_iterations=20, wait_share=0.9), 88) == [(28,)]


def test_of_prompts_that_are_not_cut_only_those_count_that_fit() -> None:
    # 60 and 60: one fits, and 61 tokens with the one that decodes are fewer than 90.
    small = Small(tokens=10_000, wait_iterations=20, wait_share=0.9, chunked=False)
    first, second = late_prompts(small, 60, 60)
    # The second waits anew once the first has been computed.
    assert (first, second) == ((28,), (49,))


def test_a_prompt_that_comes_while_others_wait_goes_with_them() -> None:
    small = Small(tokens=10_000, wait_iterations=20, wait_share=0.9)
    small.submit(10, 101)
    small.env.run(until=int(5.5 * MILLISECOND))
    first = small.submit(10, 1)
    small.env.run(until=int(15.5 * MILLISECOND))
    second = small.submit(79, 1)
    small.env.run()
    # Seen at 16 ms, in the plan from 17 ms on: 10 + 79 + 1 tokens are enough.
    assert ms(first.first_ns, second.first_ns) == (18, 18)


def test_a_prompt_that_is_not_cut_waits_for_an_iteration_with_room_for_all_of_it() -> None:
    small = Small(tokens=10_000, chunked=False)
    first, second, third = small.run((60, 1), (50, 1), (30, 1))
    # 60 leave 40: the second waits, and the third behind it.
    assert ms(first.first_ns, second.first_ns, third.first_ns) == (1, 2, 2)
    assert [row.prompt_tokens for row in small.rows] == [60, 80]


def test_prompts_that_have_no_place_do_not_wait_yet() -> None:
    small = Small(tokens=10_000, max_sequences=2, wait_iterations=20)
    first, *_, late = small.run((50, 31), (50, 101), (10, 1))
    # One iteration computes both prompts, thirty decode until the first makes place: then twenty are waited for.
    assert ms(first.end_ns, late.first_ns) == (31, 52)


def test_prompts_for_which_there_is_no_room_do_not_wait_yet() -> None:
    # 20 blocks of 10 tokens, of which the third needs 9: the first two leave 8, and the second alone 12. It would wait
    # from 31 ms on, were there not soon nobody who decodes.
    small = Small(tokens=200, wait_iterations=20)
    first, second, late = small.run((50, 31), (50, 41), (90, 1))
    assert ms(first.end_ns, second.end_ns, late.first_ns) == (31, 41, 42)

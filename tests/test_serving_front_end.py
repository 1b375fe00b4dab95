from serving_engines import MILLISECOND, Small, ms

from simulator.forecast.scenario_front_end import FrontEnd as Asked
from simulator.forecast.serving.front_end import FrontEnd
from simulator.forecast.serving.requests import Request
from simulator.forecast.serving.sequence import Sequence


def fronted(small: Small, **asked: float) -> FrontEnd:
    return FrontEnd(small.env, Asked(**asked), small.engine)


def test_a_prompt_is_tokenized_before_the_engine_hears_of_it() -> None:
    small = Small()
    front = fronted(small, request_s=0.005, token_s=20e-6)
    one = Sequence(Request(0, 50, 1), 0)
    front.submit(one)
    small.env.run()
    # 50 tokens of 0.02 ms, 5 ms for the request, an iteration of a millisecond.
    assert ms(one.first_ns) == (7,)


def test_prompts_are_tokenized_one_after_the_other() -> None:
    small = Small()
    front = fronted(small, request_s=0.005, token_s=20e-6)
    sequences = [Sequence(Request(0, 150, 1), 0) for _ in range(3)]
    for one in sequences:
        front.submit(one)
    assert front.under_way == 3
    small.env.run()
    # Tokenized after 3, 6 and 9 ms; each takes two iterations of 100 tokens.
    assert [ms(one.first_ns) for one in sequences] == [(10,), (13,), (16,)]
    assert front.under_way == 0


def test_a_front_end_that_was_idle_begins_at_once() -> None:
    small = Small()
    front = fronted(small, request_s=0.0, token_s=20e-6)
    small.env.run(until=10 * MILLISECOND)
    late = Sequence(Request(0, 50, 1), int(small.env.now))
    front.submit(late)
    small.env.run()
    assert ms(late.first_ns) == (12,)


def test_without_a_front_end_the_engine_hears_at_once() -> None:
    small = Small()
    one = Sequence(Request(0, 50, 1), 0)
    fronted(small, request_s=0.0, token_s=0.0).submit(one)
    small.env.run()
    assert ms(one.first_ns) == (1,)

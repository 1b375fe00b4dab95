from collections.abc import Mapping

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.links import Links, fair_shares

usages = st.lists(
    st.dictionaries(st.sampled_from(["nvlink", "nic", "pcie"]), st.floats(0.01, 1.0), max_size=3),
    min_size=1,
    max_size=7,
)


def finish_ns(*transfers: tuple[int, int, Mapping[str, float]]) -> list[int]:
    """When each transfer (start, time alone, busy) ends."""
    env = simpy.Environment()
    links, ends = Links(env), [0] * len(transfers)

    def one(number: int, start: int, alone: int, busy: Mapping[str, float]) -> simpy.events.ProcessGenerator:
        yield env.timeout(start)
        yield links.transfer(alone, busy)
        ends[number] = int(env.now)

    for number, transfer in enumerate(transfers):
        env.process(one(number, *transfer))
    env.run()
    return ends


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [
        ([{"nic": 1.0}], [1.0]),
        ([{}], [1.0]),
        ([{"nic": 0.5}, {"nic": 0.5}], [1.0, 1.0]),
        ([{"nic": 1.0}, {"nic": 1.0}], [1 / 2, 1 / 2]),
        ([{"nic": 1.0}, {"nic": 0.5}], [2 / 3, 2 / 3]),
        ([{"nic": 1.0}, {"nic": 1.0}, {"nic": 1.0}, {"nvlink": 1.0}], [1 / 3, 1 / 3, 1 / 3, 1.0]),
        # nic is full when all stand at 1/2, which freezes its two; nvlink has 1 - 0.4/2 - 1/2 = 0.3 left for the third.
        ([{"nic": 1.0}, {"nic": 1.0, "nvlink": 0.4}, {"nvlink": 1.0}], [0.5, 0.5, 0.8]),
        # All rise to 1/2 (nic: 2 x 1/2). The third goes on until nvlink, 1/2 x 0.2 + 0.9 x 1, is full at 1.
        ([{"nic": 1.0}, {"nic": 1.0, "nvlink": 0.2}, {"nvlink": 0.9}], [0.5, 0.5, 1.0]),
    ],
)
def test_shares_filled_by_hand(wanted: list[dict[str, float]], shares: list[float]) -> None:
    assert fair_shares(wanted) == pytest.approx(shares, abs=1e-12)


@given(usages)
def test_no_link_is_over_capacity_and_nobody_could_have_more_without_taking_from_a_smaller_share(
    wanted: list[Mapping[str, float]],
) -> None:
    shares = fair_shares(wanted)
    load = {
        link: sum(share * usage.get(link, 0.0) for share, usage in zip(shares, wanted, strict=True))
        for link in ("nvlink", "nic", "pcie")
    }
    assert all(carried <= 1 + 1e-9 for carried in load.values())
    for share, usage in zip(shares, wanted, strict=True):
        assert 0 < share <= 1 + 1e-12
        full = [link for link in usage if load[link] >= 1 - 1e-9]
        others = [max(s for s, u in zip(shares, wanted, strict=True) if link in u) for link in full]
        assert share >= 1 - 1e-9 or any(share >= most - 1e-9 for most in others)


def test_three_transfers_leave_one_after_the_other() -> None:
    # A third each until the shortest has done 30 at 90; half each until the next has done its other 30 at 150; the last
    # has 90 - 60 left, which it does alone.
    nic = {"nic": 30.0}, {"nic": 60.0}, {"nic": 90.0}
    assert finish_ns((0, 30, nic[0]), (0, 60, nic[1]), (0, 90, nic[2])) == [90, 150, 180]


def test_ends_are_whole_nanoseconds_and_never_early() -> None:
    # Thirds: 10 ns at a third each end at 30; 11 and 10 ns at 2/3 each at 15, then 1 ns more.
    assert finish_ns(*[(0, 10, {"nic": 10.0})] * 3) == [30, 30, 30]
    assert finish_ns((0, 10, {"nic": 10.0}), (0, 11, {"nic": 5.5})) == [15, 16]


def test_no_work_ends_at_once() -> None:
    assert finish_ns((5, 0, {"nic": 3.0})) == [5]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300), st.integers(1, 500), st.dictionaries(st.sampled_from("ab"), st.floats(0.1, 1.0))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_link_is_never_given_more_than_its_time(drawn: list[tuple[int, int, dict[str, float]]]) -> None:
    transfers = [(start, alone, {k: u * alone for k, u in usage.items()}) for start, alone, usage in drawn]
    ends = finish_ns(*transfers)
    for (start, alone, _), end in zip(transfers, ends, strict=True):
        assert end >= start + alone
    for link in "ab":
        # Of what starts no sooner than a moment and ends by another, the link can have carried no more than between.
        for since in (start for start, _, _ in transfers):
            for until in ends:
                inside = [
                    busy.get(link, 0.0)
                    for (start, _, busy), end in zip(transfers, ends, strict=True)
                    if start >= since and end <= until
                ]
                assert sum(inside) <= max(0, until - since) + len(transfers)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.1, 1.0)), min_size=1, max_size=6), st.integers(2, 4))
def test_wider_links_never_make_transfers_that_start_together_slower(
    drawn: list[tuple[int, float]], factor: int
) -> None:
    slow = finish_ns(*((0, alone * factor, {"nic": alone * factor * usage}) for alone, usage in drawn))
    fast = finish_ns(*((0, alone, {"nic": alone * usage}) for alone, usage in drawn))
    assert all(early <= late for early, late in zip(fast, slow, strict=True))
    assert all(late <= factor * (early + len(drawn)) for early, late in zip(fast, slow, strict=True))

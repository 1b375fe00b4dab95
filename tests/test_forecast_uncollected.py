import gc

import pytest

from simulator.forecast.uncollected import uncollected


def test_the_collector_is_off_meanwhile_and_on_again_even_after_a_fault() -> None:
    seen = []

    def fault() -> None:
        with uncollected():
            seen.append(gc.isenabled())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fault()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

import pytest

from simulator.engine.interference import lost_ns
from simulator.engine.simulation import Part, Simulation
from simulator.program.serving.overlap import overlapped, run, woven
from simulator.program.serving.timing import Step, in_order


def half(attention, experts, wire, taken=0.0):
    """Two layers with experts; times in microseconds."""
    layer = [
        Step("attention_s", attention * 1e-6, "measured", 2),
        Step("exchange_s", wire * 1e-6, "measured", 1, taken=taken),
        Step("experts_s", experts * 1e-6, "measured", 2),
        Step("exchange_s", wire * 1e-6, "measured", 1, taken=taken),
    ]
    return layer * 2


def test_exchanges_that_are_shorter_than_the_other_half_are_hidden_but_for_the_last():
    # Computing takes 2 x 2 x (30 + 20) us; the second half's last combine has nothing beside it.
    parts = overlapped(half(30, 20, 10), half(30, 20, 10), 0.0)
    assert parts.attention_s == pytest.approx(120e-6)
    assert parts.experts_s == pytest.approx(80e-6)
    assert parts.exchange_s == pytest.approx(10e-6)


def test_compute_units_that_an_exchange_takes_make_kernels_longer():
    # Seven of eight exchanges of 10 us run beside kernels at three quarters of their speed: 7 x 10 x (1 / 0.75 - 1) us.
    parts = overlapped(half(30, 20, 10, 0.25), half(30, 20, 10, 0.25), 0.0)
    assert parts.exchange_s == pytest.approx(10e-6 + 70e-6 / 3, rel=1e-4)


@pytest.mark.parametrize("launch_s", [0.0, 9e-6])
def test_times_are_the_engines(launch_s):
    program = woven(half(30, 20, 37, 0.15), half(25, 31, 12, 0.15), launch_s)
    simulation = Simulation(Part(program, 1))
    (recording,) = simulation.run()
    assert (run(program).end_ns == recording.end_ns).all()
    longer = lost_ns(program, recording)
    (recording,) = simulation.run([longer])
    assert (run(program, longer).end_ns == recording.end_ns).all()


def test_a_host_that_launches_slower_than_kernels_run_makes_the_device_wait():
    steps = [Step("dense_s", 2e-6, "measured", 1)] * 3
    parts = in_order(steps, 5e-6)
    # The last kernel is issued at 15 us and ends at 17.
    assert parts.total_s == pytest.approx(17e-6)
    assert parts.launch_bound_s == pytest.approx(11e-6)


def test_a_host_that_waits_for_counts_falls_behind():
    steps = [Step("dense_s", 20e-6, "measured", 1), Step("exchange_s", 4e-6, "measured", 1, waited_for=True)]
    parts = in_order([*steps, Step("dense_s", 2e-6, "measured", 1)], 5e-6)
    assert parts.total_s == pytest.approx((5 + 20 + 4 + 5 + 2) * 1e-6)

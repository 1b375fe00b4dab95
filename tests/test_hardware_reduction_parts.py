"""How a compiler cuts a reduction of all elements, by hand for 132 compute units: 528 parts are wanted."""

from pathlib import Path

import pytest

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator
from simulator.hardware.reduction_parts import cut_evenly

H200 = load_accelerator("h200-sxm", Path())


@pytest.mark.parametrize(
    ("elements", "even"),
    [
        (8192, True),  # one part
        (2**20, True),  # 32 a thread, 128 parts
        (3 * 2**18 + 1, False),  # 32 a thread: 97 parts of 8,108 elements, and one left over
        (2**25, True),  # 249 a thread wanted, 256 divides: 512 parts
        (7 * 2**24, True),  # 869 wanted, 896 divides: 512 parts
        (2**27, False),  # 993 wanted, 1,024 lies 31 away: 528 parts of 254,201 elements, 18,560 short
        (2**28, True),  # above 512 a thread of the device: 2,048 parts
        (2**28 + 2, False),  # 2 divides, too far from 512: 2,049 parts
    ],
)
def test_parts_of_132_units(elements, even):
    assert cut_evenly(elements, 132) is even


def test_other_devices_cut_otherwise():
    # 148 units want 592 parts: 886 a thread of 2^27, too far from 1,024.
    assert not cut_evenly(2**27, 148)
    # 108 units want 432 parts, and 2^27 has more than 512 for each of their threads: 1,024 parts.
    assert cut_evenly(2**27, 108)


def test_unequal_parts_are_read_slowly():
    even, uneven = (kernel_time(H200, "amax_compiled", 0, 2.0 * n).seconds - 5e-6 for n in (7 * 2**24, 2**27))
    assert even == pytest.approx(2 * 7 * 2**24 / (4.8e12 * 0.73))
    assert uneven == pytest.approx(2 * 2**27 / (4.8e12 * 0.3175))

from simulator.model.operator import Kernel
from simulator.program.serving.split_keys import split_keys

UNITS = 132


def attention(length):
    return Kernel("attention", 1e9, 1e6, (32, 128, length))


def test_idle_units_share_out_the_keys():
    # 32 heads of 12 queries are 3 blocks of 128, and 44 times as many fill 132 units.
    reading, arithmetic = split_keys(attention(44 * 200), 12, UNITS)
    assert reading == Kernel("decode_attention", 1e9, 1e6, (32, 128, 8800))
    assert arithmetic == Kernel("attention", 1e9, 0.0, (32, 128, 200))


def test_there_are_no_more_parts_than_blocks_of_keys():
    _, arithmetic = split_keys(attention(1280), 1, UNITS)
    assert arithmetic.shape == (32, 128, 128)


def test_blocks_that_fill_the_units_keep_keys_together():
    # 0.8 of 132 is 105.6.
    assert split_keys(attention(15_000), 4 * 105, UNITS) is not None
    assert split_keys(attention(15_000), 4 * 106, UNITS) is None


def test_few_keys_stay_together():
    assert split_keys(attention(512), 1, UNITS) is None
    assert split_keys(attention(513), 1, UNITS) is not None

"""How a compiler cuts a reduction of all elements to one, which decides how fast its first kernel reads.

PyTorch's inductor reduces parts of a tensor in one kernel and their results in another. It wants as many parts as fill
the device, of a number of elements for each thread that divides the whole; where no divisor lies near, parts are
unequal: rows of the first kernel then begin anywhere, and it reads element by element. 2^27 bf16 elements (32,768 x
4,096) are such a case on 132 compute units. Rules: `reduction_split_factor` of torch/_inductor/choices.py,
pytorch/pytorch@0012d881. Shapes that are symbols to the compiler are not cut, which this does not know.
"""

from __future__ import annotations

from functools import cache
from math import ceil

THREADS = 256
"""Of a block, of which one reduces a part."""
THREADS_PER_UNIT = 2048
FEWEST, MOST = 32, 512
"""Elements for each thread of the device, below and above which a thread is given as many."""
WHOLE = 8192
"""Elements that are reduced as one part."""
NEAR, NEAR_MOST = 30, 50
"""How far from the wanted number a divisor is taken in its place: in between, and at MOST."""


@cache
def cut_evenly(elements: int, units: int) -> bool:
    """Whether *elements* are cut into parts of one size on a device of so many compute *units*."""
    if elements <= WHOLE:
        return True
    parts = ceil(elements / (THREADS * _of_a_thread(elements, units)))
    return elements % parts == 0


def _of_a_thread(elements: int, units: int) -> int:
    threads = units * THREADS_PER_UNIT
    if elements <= FEWEST * threads:
        return FEWEST
    if elements >= MOST * threads:
        return _divisor(elements, MOST, NEAR_MOST) or MOST
    wanted = ceil(elements / (THREADS * (threads // (2 * THREADS))))
    return max(FEWEST, _divisor(elements, wanted, NEAR) or wanted)


def _divisor(elements: int, wanted: int, near: int) -> int | None:
    """The divisor of *elements* nearest to *wanted*, less than *near* away."""
    candidates = (n for n in range(max(1, wanted - near + 1), wanted + near) if elements % n == 0)
    return min(candidates, key=lambda n: abs(n - wanted), default=None)

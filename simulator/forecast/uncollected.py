"""Python's collector of cycles, left off for a while.

Programs are hundreds of thousands of objects without cycles, which the collector would look through again and again:
a tenth of a forecast's time. What has no cycles goes as it always does, once nobody refers to it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave it off meanwhile, and then as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

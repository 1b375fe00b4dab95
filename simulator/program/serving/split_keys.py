"""Attention of few queries over many keys: where blocks of queries leave compute units idle, these share the keys out.

FlashAttention-3 and FlashInfer do so, and add the parts up in a second kernel, as for decoding sequences. Such a kernel
reads caches as decoding does. Its arithmetic is that of so many more blocks of queries, over so many fewer keys each.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from simulator.model.operator import Kernel

_BLOCK = 128
"""Queries, and keys, of one block; query heads that share keys lie in one."""
_ENOUGH = 0.8
"""Blocks for each compute unit from which on nothing is split (FlashAttention-3, hopper/heuristics.h)."""
_FEW_KEYS = 4
"""Blocks of keys that are too few to split (the same)."""


def split_keys(kernel: Kernel, tokens: int, units: int) -> tuple[Kernel, Kernel] | None:
    """What binds *kernel*, attention of *tokens* queries a head, with its keys split among *units* compute units: its
    reading, and its arithmetic. It takes the longer of the two. None where keys stay together.
    """
    heads, dim, length = kernel.shape
    blocks, of_keys = ceil(heads * tokens / _BLOCK), ceil(length / _BLOCK)
    if blocks >= _ENOUGH * units or of_keys <= _FEW_KEYS:
        return None
    parts = min(units // blocks, of_keys)
    reading = replace(kernel, kind="decode_attention")
    return reading, replace(kernel, bytes=0.0, shape=(heads, dim, ceil(length / parts)))

"""Room for caches on one rank, handed out in blocks, as PagedAttention does (Kwon et al., SOSP 2023).

What each token adds is counted in whole blocks; what a sequence needs whatever its length (recurrent states), or up to
a window, is set aside when it is admitted.
"""

from __future__ import annotations

from collections.abc import Callable

Fixed = Callable[[int], float]
"""Bytes of a sequence of so many tokens that do not grow with each further one: states and windows."""


class CachePool:
    """So many bytes; all counts are whole bytes."""

    def __init__(self, capacity_bytes: float, token_bytes: float, fixed_bytes: Fixed, block_tokens: int) -> None:
        self.capacity_bytes = max(0, int(capacity_bytes))
        self.block_tokens = block_tokens
        self.block_bytes = int(token_bytes * block_tokens)
        self._fixed = fixed_bytes
        self.used_bytes = 0
        """Held by sequences."""

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; very many where tokens leave nothing behind."""
        if self.block_bytes == 0:
            return 2**62
        return (self.capacity_bytes - self.used_bytes) // self.block_bytes

    def blocks(self, tokens: int) -> int:
        """Whole ones that hold *tokens* tokens."""
        return -(-tokens // self.block_tokens)

    def need_bytes(self, blocks: int, longest: int) -> int:
        """Of a sequence with so many *blocks* that may grow to *longest* tokens."""
        return blocks * self.block_bytes + int(self._fixed(longest))

    def has_room(self, blocks: int, longest: int) -> bool:
        """Whether such a sequence can be taken in."""
        return self.used_bytes + self.need_bytes(blocks, longest) <= self.capacity_bytes

    def ever_has_room(self, longest: int) -> bool:
        """Whether a sequence of *longest* tokens fits while there is no other."""
        return self.need_bytes(self.blocks(longest), longest) <= self.capacity_bytes

    def take(self, blocks: int, longest: int = 0) -> None:
        """Hold blocks, and with *longest* what a new sequence needs besides."""
        self.used_bytes += self.need_bytes(blocks, longest) if longest else blocks * self.block_bytes

    def release(self, blocks: int, longest: int) -> None:
        """Give back all of a sequence."""
        self.used_bytes -= self.need_bytes(blocks, longest)

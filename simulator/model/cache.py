"""What a mixer keeps of the past while it decodes."""

from __future__ import annotations

from dataclasses import dataclass

BF16_BYTES = 2
FP32_BYTES = 4
INDEX_SCALE_BYTES = 4
"""One fp32 scale beside each fp8 indexer key (DeepGEMM's layout)."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Memory of one sequence in one layer, in bytes: keys and values in bf16, indexer keys in fp8, states in fp32."""

    kv_bytes_per_token: float = 0.0
    """Keys and values that each further token adds for good; 0 where a window forgets them."""
    index_bytes_per_token: float = 0.0
    """Keys of the indexer that each further token adds."""
    bytes_per_sequence: float = 0.0
    """What does not grow with length: recurrent state, convolution state, a full window."""

    def __add__(self, other: Cache) -> Cache:
        return Cache(
            self.kv_bytes_per_token + other.kv_bytes_per_token,
            self.index_bytes_per_token + other.index_bytes_per_token,
            self.bytes_per_sequence + other.bytes_per_sequence,
        )

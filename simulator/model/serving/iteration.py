"""One iteration of a serving engine on one attention-data-parallel rank: what each of its sequences computes.

Sequences in prefill bring a chunk of their prompt, sequences in decode one token each. All go through the layers
together, as in continuous batching with chunked prefill (Yu et al., "Orca", OSDI 2022; Agrawal et al.,
"Sarathi-Serve", OSDI 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of one sequence's prompt."""

    new_tokens: int
    """Computed now."""
    cached_tokens: int = 0
    """In the cache already: earlier chunks, or a prefix that another request left."""

    @property
    def pairs(self) -> int:
        """Query-key pairs of causal attention: each new token sees the cached ones and the new ones up to itself."""
        return self.new_tokens * self.cached_tokens + self.new_tokens * (self.new_tokens + 1) // 2

    def pairs_within(self, window: int) -> int:
        """Those where a query sees itself and the *window* - 1 tokens before it."""
        left_out = replace(self, cached_tokens=max(0, self.cached_tokens - window))
        if self.cached_tokens >= window:
            return self.pairs - left_out.pairs
        late = max(0, self.new_tokens - (window - self.cached_tokens))
        return self.pairs - late * (late + 1) // 2


@dataclass(frozen=True, slots=True)
class Iteration:
    """What the rank computes in one pass; other ranks bring alike much, or *shared_tokens* in the mean."""

    prefill: tuple[Chunk, ...] = ()
    decode_contexts: tuple[int, ...] = ()
    """Tokens that each decoding sequence attends to, the new one among them."""
    shared_tokens: float | None = None
    """Tokens that each rank brings to the experts in the mean; None: as many as this one."""

    @property
    def prefill_tokens(self) -> int:
        """New tokens of all prompts."""
        return sum(chunk.new_tokens for chunk in self.prefill)

    @property
    def tokens(self) -> int:
        """All tokens that pass the layers."""
        return self.prefill_tokens + len(self.decode_contexts)

    @property
    def brought(self) -> float:
        """Tokens that each rank brings to the experts in the mean."""
        return self.tokens if self.shared_tokens is None else self.shared_tokens

    @property
    def sequences(self) -> int:
        """Sequences that take part: each has logits of one token computed."""
        return len(self.prefill) + len(self.decode_contexts)

    @property
    def halves(self) -> tuple[Iteration, Iteration]:
        """The iteration in two of nearly equal tokens: sequences dealt in turn, one alone cut in the middle."""
        if len(self.prefill) == 1:
            first, second = self.prefill[0].new_tokens // 2, -(-self.prefill[0].new_tokens // 2)
            cached = self.prefill[0].cached_tokens
            chunks: tuple[tuple[Chunk, ...], ...] = ((Chunk(second, cached),), ())
            if first:
                chunks = ((Chunk(second, cached),), (Chunk(first, cached + second),))
        else:
            chunks = (self.prefill[::2], self.prefill[1::2])
        return self._part(chunks[0], self.decode_contexts[1::2]), self._part(chunks[1], self.decode_contexts[::2])

    def _part(self, prefill: tuple[Chunk, ...], decode_contexts: tuple[int, ...]) -> Iteration:
        """Those sequences alone, and their part of what comes to the experts."""
        part = Iteration(prefill, decode_contexts)
        if self.shared_tokens is None:
            return part
        return replace(part, shared_tokens=self.shared_tokens * part.tokens / self.tokens)

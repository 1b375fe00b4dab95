"""A request on its way through an engine."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.forecast.serving.requests import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """What an engine knows of one request. Times are in ns, negative until they are known."""

    request: Request
    arrival_ns: int
    generated: int = 0
    """Tokens of the answer that there are."""
    left: int = 0
    """Tokens still to be computed before the next one of the answer: of the prompt, and after a preemption of what
    there was of the answer."""
    cached: int = 0
    """Tokens in the cache, while the prompt is computed; while it decodes see `base`."""
    base: int = 0
    """While it decodes: tokens in the cache less the iterations that its rank has decoded."""
    ends: int = -1
    """While it decodes: after which of its rank's iterations it ends."""
    hashes: tuple[int, ...] = ()
    """Of the blocks of its prompt that it may share with others."""
    away: int = 0
    """Tokens of its cache that lower tiers were given to keep, when it was sent back."""
    preemptions: int = 0
    first_ns: int = -1
    end_ns: int = -1
    handed_over: bool = False
    """Whether the cache of its prompt, and the first token, come from accelerators that prefill."""

    @property
    def ready(self) -> bool:
        """Whether it can decode at once."""
        return self.handed_over and self.preemptions == 0

    @property
    def target(self) -> int:
        """Tokens that its next prefill ends with."""
        return self.request.prompt_tokens + self.generated

    @property
    def longest(self) -> int:
        """Tokens in the cache at its end."""
        return self.request.longest

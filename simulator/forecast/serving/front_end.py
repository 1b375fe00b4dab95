"""The processes before an engine: they hear requests, tokenize prompts and pass answers on.

Each tokenizes one prompt after the other (one event loop: SGLang's tokenizer manager, `trtllm-serve`, vLLM's API
server); what else it does for a request, before the engine and with the first token, is a time that requests have
beside each other. All of it is taken before the engine.
"""

from __future__ import annotations

from heapq import heapreplace

import simpy

from simulator.forecast.scenario_front_end import FrontEnd as Asked
from simulator.forecast.serving.engine import Engine
from simulator.forecast.serving.sequence import Sequence


class FrontEnd:
    """Before *engine*, as *asked*; each of its requests stands for *alike*, which come at the same time."""

    def __init__(self, env: simpy.Environment, asked: Asked, engine: Engine, alike: float = 1.0) -> None:
        self._env, self._asked, self.engine, self._alike = env, asked, engine, alike
        self._free_ns = [0] * asked.processes
        """When each process has tokenized what it has."""
        self._inside = 0

    @property
    def under_way(self) -> int:
        """Sequences that it and its engine have to do with."""
        return self._inside + self.engine.under_way

    def submit(self, sequence: Sequence) -> None:
        """*sequence* comes."""
        asked, now_ns = self._asked, int(self._env.now)
        tokenizes_s = asked.token_s * sequence.request.prompt_tokens
        begin_ns = max(self._free_ns[0], now_ns)
        heapreplace(self._free_ns, begin_ns + round(1e9 * tokenizes_s * self._alike))
        self._inside += 1
        self._env.process(self._heard(sequence, begin_ns - now_ns + round(1e9 * (tokenizes_s + asked.request_s))))

    def _heard(self, sequence: Sequence, after_ns: int) -> simpy.events.ProcessGenerator:
        yield self._env.timeout(after_ns)
        self._inside -= 1
        self.engine.submit(sequence)

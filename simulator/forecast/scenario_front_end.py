"""The part of a serving scenario that says what the process before the engine takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.forecast.section import Section

REQUEST_S = 5.6e-3
"""Hearing a request, passing it to the engine's process, its first token back, and that as an event to the client.

SGLang before a model that does nothing for 2.632 ms (tenstorrent/tt-inference-server#3560, May 2026): first tokens of
prompts of 128 tokens come after 9.54 ms in the median; less 1.3 ms for tokenizing, as there (#2173)."""
TOKEN_S = 10e-6
"""Tokenizing, for each token: 131 tokens in 1.319 ms (tenstorrent/tt-inference-server#2173, February 2026).

Hugging Face's tokenizers with a vocabulary of 128,000 take 10 to 17 us on 8 thousand to 260 thousand tokens of source
text on one core of an EPYC (own run, tokenizers 0.21). tiktoken is faster: 0.6 us (47 ms for 80 thousand tokens with
Kimi K2.5's, sgl-project/sglang#25265)."""


class FrontEnd(Section):
    """What the process takes that hears requests, tokenizes prompts and passes answers on; 0 and 0: there is none."""

    request_s: Annotated[float, Field(ge=0, le=60)] = Field(
        REQUEST_S, description="For a request, beside others, up to the first token at the client."
    )
    token_s: Annotated[float, Field(ge=0, le=1)] = Field(TOKEN_S, description="Tokenizing, for each token of a prompt.")
    processes: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1,
        description=(
            "Of each engine, each of which tokenizes one prompt after the other (SGLang's tokenizer-worker-num, vLLM's "
            "api-server-count)."
        ),
    )
